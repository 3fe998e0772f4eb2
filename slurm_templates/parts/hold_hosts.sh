
# --- Hold the hosts while the program uses them ---
# A connection to each host keeps its lease. When one is lost, the program ends too.
begin() { # NODE: in the shell that comes over ssh
    local python
    export HPC_LAUNCH_NODE=$1 HPC_LAUNCH_ATTEMPT_DIR=$hold_dir
    python=$(command -v python3) || { echo "$(uname -n) has no python3" >&2; exit 127; }
    exec "$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/hpc_launch_on_host.py" --lease bash -c ': >"$HPC_LAUNCH_ATTEMPT_DIR/$HPC_LAUNCH_NODE.began" && exec sleep infinity'
}
hold_dir=$attempt_dir/hold
mkdir "$hold_dir" || die "cannot create $hold_dir"
{
    declare -p hold_dir HPC_LAUNCH_RUN_DIR HPC_LAUNCH_RUN_NAME HPC_LAUNCH_JOB_ID
    declare -f begin
    echo '"$@"'
} >"$hold_dir/node.sh" || die "cannot write $hold_dir/node.sh"
hold_hosts() {
    local python
    python=$(command -v python3) || die "found no python3 on $HOSTNAME"
    exec "$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/hpc_launch_fan_out.py" "$hold_dir" "${hosts[@]}" </dev/null
}
hold_hosts &
holder=$!
held() { # whether each host is held
    local note count=0
    for note in "$hold_dir"/*.began; do
        [ ! -e "$note" ] || count=$((count + 1))
    done
    [ "$count" -eq "$job_nodes" ]
}
until held; do
    kill -0 "$holder" 2>/dev/null || die "not all hosts can be used; the program was not started"
    sleep 0.2
done
end_with_hosts() { # on another host than the first, what the program started ends as the program ends it
    while kill -0 "$holder" 2>/dev/null; do sleep 1; done
    [ ! -e "$hold_dir/over" ] || return
    : >"$attempt_dir/ending"
    kill -s TERM -- "${step[@]}" 2>/dev/null
    sleep 10
    kill -s KILL -- "${step[@]}" 2>/dev/null
}
let_hosts_go() { # sets `code` where a host was lost
    : >"$hold_dir/over"
    if kill -s TERM "$holder" 2>/dev/null; then
        wait "$holder"
    else
        wait "$holder"
        code=$?
    fi
}
