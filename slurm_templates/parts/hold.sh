
# --- Hold hosts: a connection to each keeps its lease ---
begin() { # NODE: in the shell that comes over ssh
    local python
    export HPC_LAUNCH_NODE=$1 HPC_LAUNCH_ATTEMPT_DIR=$hold_dir
    python=$(command -v python3) || { echo "$(uname -n) has no python3" >&2; exit 127; }
    exec "$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" on_host --lease bash -c ': >"$HPC_LAUNCH_ATTEMPT_DIR/$HPC_LAUNCH_NODE.began" && exec sleep infinity'
}
hold() { # FOLDER HOST...: sets `holder`
    local hold_dir=$1 python
    mkdir "$hold_dir" || die "cannot create $hold_dir"
    {
        declare -p hold_dir HPC_LAUNCH_RUN_DIR HPC_LAUNCH_RUN_NAME HPC_LAUNCH_JOB_ID
        declare -f begin
        echo '"$@"'
    } >"$hold_dir/node.sh" || die "cannot write $hold_dir/node.sh"
    python=$(command -v python3) || die "found no python3 on $HOSTNAME"
    "$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" fan_out "$@" </dev/null &
    holder=$!
}
