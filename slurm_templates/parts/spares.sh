
# --- Spares: the training runs on some of the job's nodes ---
# At first on the first ones; after a failure the end hook chooses them. The others are idle.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
[ ! -f "$attempt_dir/hosts" ] || mapfile -t hosts <"$attempt_dir/hosts"
hosts=("${hosts[@]:0:job_nodes}")
nodes=$(IFS=, && printf '%s' "${hosts[*]}")
on_hosts=(--nodelist="$nodes")
unset SLURM_GPUS # of all nodes; a step takes the GPUs of its own nodes
