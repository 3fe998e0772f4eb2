
# --- Spares, or an elastic number of nodes: the training runs on some of the job's nodes ---
# At first on the first ones; after a failure the end hook chooses them. The others are idle.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
[ ! -f "$attempt_dir/hosts" ] || mapfile -t hosts <"$attempt_dir/hosts"
hosts=("${hosts[@]:0:job_nodes}")
nodes=$(IFS=, && printf '%s' "${hosts[*]}")
on_hosts=(--nodelist="$nodes")
if [ -n "$first_step" ]; then # a step that has lost a node keeps its CPUs, GPUs and memory until Slurm gives the node up
    on_hosts+=(--overlap --mem=0)
    unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU
fi
unset SLURM_GPUS # of all nodes; a step takes the GPUs of its own nodes
