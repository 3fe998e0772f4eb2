
# --- Copies on hosts that share no folders ---
# agent/copies.py says `ready` when each host has its copy, and then brings back what the hosts write.
copier=''
copy_to_hosts() { # what is there now: begin, or send what has changed
    local python answer=''
    if [ -n "$copier" ]; then
        kill -s USR2 "$copier"
    else
        python=$(command -v python3) || die "found no python3 on $HOSTNAME"
        exec {copies}< <(exec "$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" copies "${job_copies[@]}" "$attempt_dir" "$PWD" "${hosts[@]}" </dev/null)
        copier=$!
        say "each host that shares no folders gets a copy of the run, in $run_dir"
        [ -z "${job_own_checkpoints:-}" ] || say "each host has its own $(printf %q "$checkpoints"): an attempt on other hosts does not find these checkpoints"
    fi
    read -r answer <&"$copies"
    [ "$answer" = ready ] || die "not all hosts have a copy of the run; nothing was started"
}
forget_environment() { # on a host with a folder of its own, once it has read the file
    [ -e "$HPC_LAUNCH_ATTEMPT_DIR/agent/first-host" ] || rm -f "$HPC_LAUNCH_ATTEMPT_DIR/environment"
}
node_functions+=(forget_environment)
fetch_the_rest() { # of the logs, once all processes have ended
    kill -s USR1 "$copier" 2>/dev/null
    while kill -0 "$copier" 2>/dev/null; do sleep 0.1; done
}
