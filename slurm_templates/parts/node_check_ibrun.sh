
# --- Node check on a site that starts programs by ibrun ---
# No source says that srun works inside its jobs, so ibrun takes the place of srun during the check. It starts the same
# number of tasks as for the training; the first one of each node checks the node.
srun() { # OPTION... bash -c COMMANDS
    local word log=/dev/null
    [ "$phase" = check ] || { command srun "$@"; return; }
    for word in "$@"; do
        case $word in --output=*) log=${word#*=} ;; esac
    done
    { declare -p hosts environment; declare -f begin_check; printf 'begin_check\n%s\n' "${!#}"; } >"$attempt_dir/check.sh"
    exec ibrun -n "$((job_nodes * job_tasks_per_node))" bash "$attempt_dir/check.sh" >"$log" 2>&1
}
begin_check() { # sets the variables that srun would set
    local at name mark
    # shellcheck source=/dev/null
    . <(tail -n +2 "$environment") # without its first line, which enters a folder that the node may lack
    name=$(uname -n)
    for at in "${!hosts[@]}"; do
        [ "${hosts[at]%%.*}" = "${name%%.*}" ] || continue
        export SLURM_NODEID=$at SLURMD_NODENAME=${hosts[at]}
        mark=$HPC_LAUNCH_ATTEMPT_DIR/agent/check-$at.began
        (set -o noclobber; : >"$mark") 2>/dev/null || [ ! -e "$mark" ] || exit 0 # another task of the node checks it
        return
    done
    echo "$name is not one of the job's nodes: ${hosts[*]}" >&2
    exit 0
}
