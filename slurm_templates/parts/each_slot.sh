
# --- A process for each slot of a host ---
each_slot() {
    local node=$HPC_LAUNCH_NODE slot code step=()
    for ((slot = 0; slot < job_slots[node]; slot++)); do
        (
            export HPC_LAUNCH_LOCAL_RANK=$slot HPC_LAUNCH_RANK=$((job_first_ranks[node] + slot))
            run_noted "$HPC_LAUNCH_ATTEMPT_DIR/logs/node-$node.rank-$HPC_LAUNCH_RANK"
        ) &
        step+=($!)
    done
    end_together slot 1
    exit "$code"
}
node_functions+=(each_slot end_together say)
