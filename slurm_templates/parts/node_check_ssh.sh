
# --- Node check on hosts that are reached by ssh ---
on_hosts=()
[ -z "${job_copies+set}" ] || copy_to_hosts
srun() { # OPTION... bash -c COMMANDS: as srun would, on each host
    local word log=/dev/null python body=${!#}
    for word in "$@"; do
        case $word in --output=*) log=${word#*=} ;; esac
    done
    python=$(command -v python3) || return
    {
        declare -p hosts environment
        declare -p job_addresses job_check_gpus job_devices 2>/dev/null
        declare -f begin_check
        printf '%s\n' "${body%check_node}" 'begin_check "$1"' check_node
    } >"$attempt_dir/check.sh"
    [ -z "${job_copies+set}" ] || copy_to_hosts
    exec "$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" check_ssh "$attempt_dir" "$log" "${hosts[@]}" </dev/null
}
begin_check() { # NODE: sets what srun would set
    local at
    umask go-w
    # shellcheck source=/dev/null
    . <(tail -n +2 "$environment") # without its first line, which enters a folder that the host may lack
    export SLURM_NODEID=$1 SLURMD_NODENAME=${hosts[$1]}
    for at in "${!job_addresses[@]}"; do job_check+=(--peer="${hosts[at]}=${job_addresses[at]}"); done
    [ -z "${job_devices[$1]:-}" ] || export CUDA_VISIBLE_DEVICES=${job_devices[$1]}
    [ -z "${job_check_gpus[$1]:-}" ] || job_check+=(--gpus="${job_check_gpus[$1]}")
}
