
# --- Guard: runs before the launcher on each node ---
# When the stop file appears, it sends the training's own processes a signal if the job file asks for one; never the
# launcher, which would end them. A SIGTERM while the job is not ending means preemption: it creates the stop file and
# goes no further.
guard() { # COMMAND...
    local child code helpers=() HPC_LAUNCH_GUARD=$$-$RANDOM$RANDOM asked='' agent=$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz
    export HPC_LAUNCH_GUARD
    appeared() { # NAME; listing the folder makes the client of a file server look again
        local file
        for file in "$HPC_LAUNCH_ATTEMPT_DIR"/*; do
            [ "${file##*/}" != "$1" ] || return 0
        done
        return 1
    }
    watch() { # looks once a second, without starting a process
        local clock python
        trap '' TERM
        exec {clock}<> <(:)
        until appeared stop; do
            kill -0 "$child" 2>/dev/null || return
            read -r -t 1 -u "$clock" || :
        done
        python=$(command -v python3) && [ -f "$agent" ] || { echo "[hpc-launch] cannot send SIG$job_warn without python3" >&2; return; }
        until "$python" -I "$agent" job_processes warn $$ "$HPC_LAUNCH_GUARD" "$job_warn"; do
            kill -0 "$child" 2>/dev/null || return
            read -r -t 1 -u "$clock" || :
        done
    }
    absorb() {
        trap '' TERM
        until appeared ending; do
            sleep 1
        done
        kill -s TERM "$child" 2>/dev/null
    }
    trap 'asked=1' TERM
    (trap - INT QUIT && exec "$@") & # bash lets what runs in the background ignore them (bash(1), SIGNALS)
    child=$!
    if [ "$job_warn" != file ]; then
        watch </dev/null >/dev/null &
        helpers+=($!)
    fi
    while :; do # a trapped signal ends `wait` early
        wait "$child"
        code=$?
        [ -n "$asked" ] || break
        asked=''
        [ -e "$HPC_LAUNCH_STOP_FILE" ] || echo TERM >"$HPC_LAUNCH_STOP_FILE"
        absorb </dev/null >/dev/null 2>&1 &
        helpers+=($!)
    done
    [ "${#helpers[@]}" -eq 0 ] || kill -s KILL "${helpers[@]}" 2>/dev/null
    # The guards of other nodes will now get a SIGTERM that does not mean preemption.
    [ "$code" -eq 0 ] || : >"$HPC_LAUNCH_ATTEMPT_DIR/ending"
    exit "$code"
}
{ printf '#!/bin/bash\n'; declare -p job_warn; declare -f guard; printf 'guard "$@"\n'; } >"$attempt_dir/guard.sh" || die "cannot write $attempt_dir/guard.sh"
