
# --- Start the nodes by DeepSpeed over pdsh and ssh, and wait for their end ---
# Sourced on each node by the shell that comes over ssh, before DeepSpeed's own launcher.
enter() { # NODE
    umask go-w
    HPC_LAUNCH_NODE=$1
    # shellcheck source=/dev/null
    . "$environment" || exit
    export HPC_LAUNCH_NODE HPC_LAUNCH_PYTHONPATH=${PYTHONPATH+=$PYTHONPATH} # DeepSpeed changes PYTHONPATH next
    [ -z "${job_interfaces[$1]:-}" ] || export NCCL_SOCKET_IFNAME="=${job_interfaces[$1]}" GLOO_SOCKET_IFNAME=${job_interfaces[$1]}
    before_each_node
    uname -n >"$HPC_LAUNCH_ATTEMPT_DIR/logs/node-$1.began" || exit
    exec >>"$HPC_LAUNCH_ATTEMPT_DIR/logs/node-$1.log" 2>&1 </dev/null
    trap 'code=$?; umask go-w; printf "%d\n" "$code" >"$HPC_LAUNCH_ATTEMPT_DIR/logs/node-$HPC_LAUNCH_NODE.exit"' EXIT
    setsid bash "$HPC_LAUNCH_ATTEMPT_DIR/end_with.sh" "$$" "$PPID" "$1" &
    umask "$job_umask"
}
# Slurm does not know what ssh starts, and no signal comes when the connection ends, so each node ends itself.
end_with() { # SHELL CONNECTION NODE
    local line mark=$HPC_LAUNCH_ATTEMPT_DIR/logs/node-$3
    while read -r line 2>/dev/null <"/proc/$1/stat" && line=${line##*) } && line=${line#* } && [ "${line%% *}" = "$2" ] &&
        [ ! -e "$HPC_LAUNCH_ATTEMPT_DIR/ending" ]; do
        sleep 1
    done
    [ -s "$mark.exit" ] || echo 137 >"$mark.exit" # the shell itself was killed, or cut off
    pkill -TERM -s "$1"
    for _ in {1..20}; do
        pgrep -s "$1" >/dev/null || break
        sleep 0.5
    done
    pkill -KILL -s "$1"
    : >"$mark.over"
}
{ declare -p environment job_umask; declare -p job_interfaces 2>/dev/null; declare -f before_each_node enter; printf 'enter "$1"\n'; } >"$attempt_dir/node.sh" || die "cannot write $attempt_dir/node.sh"
{ declare -f end_with; printf 'end_with "$@"\n'; } >"$attempt_dir/end_with.sh" || die "cannot write $attempt_dir/end_with.sh"
phase=training
start_over_ssh() {
    for name in $(compgen -e); do # DeepSpeed would pass these on, on a command line that everybody can read
        case $name in
            PYTHONPATH | PYTHONHOME) ;;
            MLFLOW* | PYTHON* | MV2* | UCX* | NCCL*) unset "$name" ;;
        esac
    done
    export DS_ENV_FILE=/dev/null # the same holds for a `.deepspeed_env` of the user
    export PDSH_SSH_ARGS_APPEND="-o BatchMode=yes -o ConnectTimeout=20 ${PDSH_SSH_ARGS_APPEND:-}"
    cd / || exit # DeepSpeed repeats the folder's name unquoted
    printf -v enter '%q' "$attempt_dir/node.sh"
    printf -v rank '%q' "$attempt_dir/rank.sh"
    start_nodes
}
start_over_ssh </dev/null &
starter=$!
step=() # on TERM, DeepSpeed would look for processes to kill by their names
with_all_below() { # PROCESS; pdsh gives each ssh a session of its own
    local below
    for below in $(pgrep -P "$1"); do
        with_all_below "$below"
    done
    printf '%s\n' "$1"
}
stop_all() { # the connections end, and the nodes with the connections
    : >"$attempt_dir/ending"
    # shellcheck disable=SC2046
    kill -s KILL $(with_all_below "$starter") 2>/dev/null
}
await_notes "$job_nodes" rank "$job_processes" 2
if declare -F let_hosts_go >/dev/null; then let_hosts_go; fi
[ "$code" -eq 0 ] || : >"$attempt_dir/ending"
for _ in {1..25}; do # until each node has ended
    left=0
    for note in "$attempt_dir"/logs/node-*.began; do
        [ ! -e "$note" ] || [ -e "${note%.began}.over" ] || left=1
    done
    [ "$left" -ne 0 ] || break
    sleep 1
done
