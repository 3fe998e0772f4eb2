
# --- Order of the nodes: those of a switch, or of a block, beside each other ---
# Slurm orders them by name; only srun's arbitrary distribution gives its tasks another order (srun(1), --distribution).
order_nodes() { # sets hosts and nodes; writes $attempt_dir/order where that is not Slurm's own order
    local python ordered=() host task
    python=$(command -v python3) && [ -f "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" ] || return
    mapfile -t ordered < <(timeout 30 scontrol --oneliner show topology 2>/dev/null </dev/null |
        "$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" node_order "${hosts[@]}")
    [ "${#ordered[@]}" -eq "${#hosts[@]}" ] && [ "${ordered[*]}" != "${hosts[*]}" ] || return
    for host in "${ordered[@]}"; do
        for ((task = 0; task < job_ordered_tasks; task++)); do printf '%s\n' "$host"; done
    done >"$attempt_dir/order" || return
    hosts=("${ordered[@]}")
    nodes=$(IFS=, && printf '%s' "${hosts[*]}")
    say "the ranks follow the switches: $nodes"
}
order_nodes
