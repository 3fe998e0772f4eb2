
# --- Guard: runs before the launcher on each node ---
# When the stop file appears, it sends the training's own processes a signal if the job file asks for one; never the
# launcher, which would end them. A SIGTERM while the job is not ending means preemption: it creates the stop file and
# goes no further.
guard() { # COMMAND...
    local child code helpers=() HPC_LAUNCH_GUARD=$$-$RANDOM$RANDOM asked=''
    export HPC_LAUNCH_GUARD
    appeared() { # NAME; listing the folder makes the client of a file server look again
        local file
        for file in "$HPC_LAUNCH_ATTEMPT_DIR"/*; do
            [ "${file##*/}" != "$1" ] || return 0
        done
        return 1
    }
    ranks() { # sets `pids`: the topmost process of each rank that is neither a shell nor a helper of a container
        local folder word words stat exe pid parent
        local -A above=() rank=() titled=() # a title is written over the environment
        pids=()
        for folder in /proc/[0-9]*; do
            [ -O "$folder" ] || continue
            local own='' of='' words=''
            while IFS= read -r -d '' word; do
                words+=$word
                case $word in
                    HPC_LAUNCH_GUARD="$HPC_LAUNCH_GUARD") own=1 ;;
                    RANK=*) of=${word#*=} ;;
                esac
            done 2>/dev/null <"$folder/environ"
            [ -n "$own" ] || [ -z "$words" ] || continue
            while IFS= read -r -d '' word; do # the node's watcher is not part of the training
                [ "$word" != "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" ] || continue 2
            done 2>/dev/null <"$folder/cmdline"
            read -r stat 2>/dev/null <"$folder/stat" || continue
            stat=${stat##*) }
            [[ $stat != Z* ]] || continue
            stat=${stat#* }
            pid=${folder##*/}
            above[$pid]=${stat%% *}
            [ -n "$of" ] || [ -z "$words" ] || continue
            exe=$(readlink "$folder/exe") || continue
            case ${exe##*/} in
                bash | sh | dash | ksh | zsh | busybox | sed | tee | cat | env | time | numactl | starter* | apptainer | singularity | podman* | conmon | crun | runc | ch-run | shifter) ;;
                *) [ -n "$words" ] && rank[$pid]=$of || titled[$pid]=1 ;;
            esac
        done
        for pid in "${!titled[@]}"; do
            parent=${above[$pid]}
            [ -n "${titled[$parent]:-}" ] || [ -z "${above[$parent]:-}" ] && [ "$parent" -ne $$ ] || rank[$pid]=titled
        done
        for pid in "${!rank[@]}"; do
            parent=${above[$pid]}
            while [ -n "${above[$parent]:-}" ] && [ -z "${rank[$parent]:-}" ]; do
                parent=${above[$parent]}
            done
            [ -n "${rank[$parent]:-}" ] || pids+=("$pid")
        done
    }
    watch() { # looks once a second, without starting a process
        local clock pids=()
        trap '' TERM
        exec {clock}<> <(:)
        until appeared stop; do
            kill -0 "$child" 2>/dev/null || return
            read -r -t 1 -u "$clock" || :
        done
        until ranks && [ "${#pids[@]}" -gt 0 ] && kill -s "$job_warn" "${pids[@]}"; do
            kill -0 "$child" 2>/dev/null || return
            read -r -t 1 -u "$clock" || :
        done
        printf '[hpc-launch %(%F %T)T] sent SIG%s to the training: processes %s\n' -1 "$job_warn" "${pids[*]}" >&2
    }
    absorb() {
        trap '' TERM
        until appeared ending; do
            sleep 1
        done
        kill -s TERM "$child" 2>/dev/null
    }
    trap 'asked=1' TERM
    "$@" &
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
