
# --- Watcher: started before the launcher on each node ---
# It notes which process died first, whether the training hangs and how much memory is left. Without a python3 the
# training runs without it.
watched() { # COMMAND...
    local python agent=$HPC_LAUNCH_RUN_DIR/hooks/hpc_launch_watch.py from=()
    [ -z "${LOCAL_RANK:-}" ] || from=(--each-process) # started once per process: the first one of the node does it
    if [ "${LOCAL_RANK:-0}" -eq 0 ] && [ -f "$agent" ] && python=$(command -v python3); then
        "$python" -I "$agent" "$HPC_LAUNCH_ATTEMPT_DIR" "${!job_node_rank}" "$$" "${from[@]}" "${job_watch[@]}" </dev/null >/dev/null 2>&1 &
    fi
    exec "$@"
}
{ printf '#!/bin/bash\n'; declare -p job_node_rank job_watch; declare -f watched; printf 'watched "$@"\n'; } >"$attempt_dir/watch.sh" || die "cannot write $attempt_dir/watch.sh"
