
# --- Watcher: started before the launcher on each node ---
# It notes which process died first, whether the training hangs, how far its start is and how much memory is left.
# Without a python3 the training runs without it.
watched() { # COMMAND...
    local python agent=$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz from=() input='' tries
    [ -z "${LOCAL_RANK:-}" ] || from=(--each-process) # started once per process: the first one of the node does it
    # Through this pipe sitecustomize.py tells the watcher of the node how far a process is.
    [ -z "${job_phases:-}" ] || export HPC_LAUNCH_PHASE_PIPE=$HPC_LAUNCH_ATTEMPT_DIR/agent/node-${!job_node_rank:-0}.pipe
    if [ "${LOCAL_RANK:-0}" -eq 0 ] && [ -f "$agent" ] && python=$(command -v python3); then
        if [ -n "${job_phases:-}" ] && mkdir -p "${HPC_LAUNCH_PHASE_PIPE%/*}" && mkfifo -m 600 "$HPC_LAUNCH_PHASE_PIPE"; then
            # Open for both ways, so that neither the watcher nor a writer waits for the other, and nothing is lost.
            { exec {input}<>"$HPC_LAUNCH_PHASE_PIPE"; } && from+=(--phases "$HPC_LAUNCH_PHASE_PIPE")
        fi 2>/dev/null
        [ -n "$input" ] || exec {input}</dev/null
        # Of little weight beside the training, which may use all CPUs.
        nice -n 10 "$python" -I "$agent" watch "$HPC_LAUNCH_ATTEMPT_DIR" "${!job_node_rank:-0}" "$$" "${from[@]}" "${job_watch[@]}" <&"$input" >/dev/null 2>&1 &
        exec {input}<&-
    elif [ -n "${job_phases:-}" ] && [ -f "$agent" ] && command -v python3 >/dev/null; then
        # The first process of the node makes the pipe. What another one reports before that is lost.
        for ((tries = 0; tries < 100; tries++)); do
            [ ! -p "$HPC_LAUNCH_PHASE_PIPE" ] || break
            sleep 0.05
        done
    fi
    exec "$@"
}
{ printf '#!/bin/bash\n'; declare -p job_node_rank job_watch job_phases 2>/dev/null; declare -f watched; printf 'watched "$@"\n'; } >"$attempt_dir/watch.sh" || die "cannot write $attempt_dir/watch.sh"
