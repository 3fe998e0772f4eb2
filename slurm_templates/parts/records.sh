
# --- Start and end records ---
# The end record gives the outcome without asking Slurm. It is written however this script ends, except by SIGKILL.
phase='' ended_by='' exit_code='' warned=null warned_by='' lost_nodes=0 resumed=null saved=null started=$(now) ended=''
record() { # FILE EXIT_CODE
    local finished=null mask # finished: true if the training itself says that no step is left
    mask=$(umask)
    umask go-w
    [ ! -e "$attempt_dir/done" ] || finished=true
    if [ "$warned" = null ] && [ -f "$attempt_dir/stop" ]; then # created by the guard of a node, or by hand
        warned=$(stat -c %Y "$attempt_dir/stop")
        read -r warned_by <"$attempt_dir/stop"
    fi
    printf '{"job_id": "%s", "restart": %d, "first_step": %s, "exit_code": %d, "signal": "%s", "phase": "%s", "started": %d, "ended": %d, "warned": %s, "warned_by": "%s", "lost_nodes": %d, "resumed_step": %s, "saved_step": %s, "finished": %s, "nodes": "%s"}\n' \
        "$job_id" "$restart" "${first_step:-null}" "$2" "$ended_by" "$phase" "$started" "${ended:-$(now)}" "$warned" "${warned_by//[!A-Z0-9]/}" "$lost_nodes" "$resumed" "$saved" "$finished" "$nodes" >"$attempt_dir/.$1.$job_id" &&
        mv -f "$attempt_dir/.$1.$job_id" "$attempt_dir/$1"
    umask "$mask"
}
at_exit() { # EXIT_CODE
    exit_code=$1
    case $phase-$1 in
        check-0 | training-0 | ended-0) ;;
        *-0) # by a file that the script sources, for example
            say "ended with exit code 0 before the training began"
            exit_code=1
            set -- 1
            ;;
    esac
    ended=$(now) # it stays the same when the checkpoint is added
    record end.json "$1" # at once: what follows may take a while
    [ "$phase" = environment ] || saved_checkpoint "$1"
    call_after "$1"
    exit "$1"
}
trap 'at_exit $?' EXIT
enter() { # PHASE: `status` shows it until the training starts
    phase=$1
    record start.json 0
}
enter environment
