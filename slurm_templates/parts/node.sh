
# --- The script of a node ---
in_workdir() { # Slurm starts it in /tmp on a node that lacks the working folder
    cd "$job_workdir" || die "$(uname -n) has no working folder $job_workdir"
}
{
    declare -p job_workdir job_umask
    declare -f "${node_functions[@]}" in_workdir say die
    if [ -f "$attempt_dir/order" ]; then # the tasks have the order of `hosts`, Slurm's numbers of the nodes have not
        echo "unset SLURM_HOSTFILE; export HPC_LAUNCH_NODE=\$((SLURM_PROCID / $job_ordered_tasks)) &&"
        [ "$job_ordered_tasks" -eq 1 ] || echo 'exec >>"$HPC_LAUNCH_ATTEMPT_DIR/logs/node-$HPC_LAUNCH_NODE.rank-$SLURM_PROCID.log" 2>&1 &&'
    elif [ -n "${job_ordered_tasks:-}" ]; then
        echo 'export HPC_LAUNCH_NODE=$SLURM_NODEID &&'
    fi
    # From here on: others who may change what the training writes must not change the logs or the watcher's files.
    echo 'in_workdir && umask "$job_umask" && on_each_node'
} >"$attempt_dir/node.sh" || die "cannot write $attempt_dir/node.sh"
