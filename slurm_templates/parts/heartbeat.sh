
# --- Heartbeat: notice a lost node long before Slurm does ---
# Each node's watcher writes agent/beat-K. A node that falls silent while others do not, and that srun cannot reach, is
# lost: the step, which would hang, is ended. A spare takes its place, or an elastic run goes on without it.
watch_beats() { # SRUN: runs beside it
    local python silent names word pid probes lost known='' before=() pause
    [ -z "${HPC_LAUNCH_IN_ALLOCATION:-}" ] || return # no other attempt follows
    python=$(command -v python3) && [ -f "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" ] || return
    while silent=$("$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" watch_node "$attempt_dir" "$1" "${before[@]}" "${hosts[@]}" </dev/null); do
        probes=() lost='' names='' before=() pause=10
        for word in $silent; do # HOST=BEAT
            names+="${names:+ }${word%%=*}"
            [ "${#probes[@]}" -lt 16 ] || continue
            is_out_of_reach "${word%%=*}" &
            probes[$!]=$word
        done
        for pid in "${!probes[@]}"; do
            wait "$pid"
            case $? in
                0) lost+="${probes[pid]%%=*} " ;;
                2) before+=("${probes[pid]}") pause=1 ;; # Slurm did not answer: look again soon
            esac
        done
        if [ -n "$lost" ] && [ "$(cat "/proc/$1/comm" 2>/dev/null)" = srun ]; then
            say "lost ${lost% }: no heartbeat, and out of reach"
            printf '%s\n' "${lost% }" >"$attempt_dir/agent/lost"
            kill -s KILL "$1"
            return
        fi
        [ -n "$lost" ] || [ "$names" = "$known" ] || say "$names: no heartbeat, but not known to be out of reach"
        known=$names
        sleep "$pause"
    done
}
is_out_of_reach() { # HOST: a step there hangs or cannot be launched, while one on this node starts; 2: Slurm does not answer
    # No pipes: a part of srun may outlive the signal.
    local answer=$attempt_dir/agent/reach-$1.log own=$attempt_dir/agent/reach-$1-own.log pid code
    reach "$1" >"$answer" 2>&1 &
    pid=$!
    reach "${hosts[0]}" >"$own" 2>&1 &
    wait "$!"
    for _ in {1..12}; do # a node that is well gets 6 s more: Slurm may be slow
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.5
    done
    kill -s TERM "$pid" 2>/dev/null
    wait "$pid"
    code=$?
    grep -q within-reach "$own" || return 2
    ! grep -q within-reach "$answer" || return
    case $code in
        124 | 137 | 143) ;;
        *) grep -qiE 'launch failed|connect|communication|no route|timed out|not respond|node fail' "$answer" ;;
    esac
}
reach() { # HOST: in a process of its own
    exec env -u SLURM_MEM_PER_CPU -u SLURM_MEM_PER_GPU timeout -k 1 20 \
        srun --job-name=hpc-launch --overlap --mem=0 --nodelist="$1" --nodes=1 --ntasks=1 echo within-reach </dev/null
}
