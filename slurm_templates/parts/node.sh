
# --- The script of a node ---
in_workdir() { # Slurm starts it in /tmp on a node that lacks the working folder
    cd "$job_workdir" || die "$(uname -n) has no working folder $job_workdir"
}
{
    declare -p job_workdir job_umask
    declare -f "${node_functions[@]}" in_workdir say die
    # From here on: others who may change what the training writes must not change the logs or the watcher's files.
    echo 'in_workdir && umask "$job_umask" && on_each_node'
} >"$attempt_dir/node.sh" || die "cannot write $attempt_dir/node.sh"
