
# --- The script of a node ---
in_workdir() { # Slurm starts it in /tmp on a node that lacks the working folder
    cd "$job_workdir" || die "$(uname -n) has no working folder $job_workdir"
}
{
    declare -p job_workdir
    declare -f "${node_functions[@]}" in_workdir say die
    echo 'in_workdir && on_each_node'
} >"$attempt_dir/node.sh" || die "cannot write $attempt_dir/node.sh"
