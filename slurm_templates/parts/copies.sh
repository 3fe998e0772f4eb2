
# --- Copies on hosts that share no folders ---
# hpc_launch_copies.py says `ready` when each host has its copy, and then brings back what the hosts write.
copy_to_hosts() {
    local python answer=''
    python=$(command -v python3) || die "found no python3 on $HOSTNAME"
    exec {copies}< <(exec "$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/hpc_launch_copies.py" "${job_copies[@]}" "$attempt_dir" "$PWD" "${hosts[@]}" </dev/null)
    copier=$!
    read -r answer <&"$copies"
    [ "$answer" = ready ] || die "not all hosts have a copy of the run; nothing was started"
    say "each host that shares no folders has a copy of the run, in $run_dir"
    [ -z "${job_own_checkpoints:-}" ] || say "each host has its own $(printf %q "$checkpoints"): an attempt on other hosts does not find these checkpoints"
}
fetch_the_rest() { # of the logs, once all processes have ended
    kill -s USR1 "$copier" 2>/dev/null
    while kill -0 "$copier" 2>/dev/null; do sleep 0.1; done
}
