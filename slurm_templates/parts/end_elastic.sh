
# --- Nodes lost ---
say "the step ended with exit code $code"
lost_nodes=$SLURM_JOB_NUM_NODES failed=0
for note in "$attempt_dir"/logs/node-*.exit; do
    [ -f "$note" ] || continue
    read -r node_code <"$note" || continue
    lost_nodes=$((lost_nodes - 1))
    [ "$node_code" -eq 0 ] || failed=1
done
say "lost $lost_nodes of $SLURM_JOB_NUM_NODES nodes"
[ "$failed" -ne 0 ] || [ "$lost_nodes" -ge "$SLURM_JOB_NUM_NODES" ] || [ -n "$ended_by" ] || code=0
