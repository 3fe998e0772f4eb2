
# --- Host names of the nodes ---
[ -n "${job_spares:-}" ] || mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
fewest=${job_fewest_nodes:-$job_nodes} # of an elastic run, or else all
[ "${#hosts[@]}" -eq "$fewest" ] || { [ "$fewest" -lt "$job_nodes" ] && [ "${#hosts[@]}" -gt "$fewest" ]; } ||
    die "expected $fewest nodes, got ${#hosts[@]}: $SLURM_JOB_NODELIST"
