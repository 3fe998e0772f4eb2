
# --- Node check: the training starts only on nodes that passed ---
# Each node writes its results to a file in the attempt folder, and connects to the first one at the port of the
# rendezvous. Without a python3, or if the check itself fails, the training starts unchecked.
check_nodes() { # returns 76 if a node is bad, 78 if NCCL does not use the network that the profile demands
    local agent=$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz python judge body code name inside='' nodes=()
    python=$(command -v python3) && [ -f "$agent" ] || { say 'node check: not possible without python3'; return 0; }
    job_check+=(--writable="$HPC_LAUNCH_RUN_DIR" --nodes="${#hosts[@]}")
    [ -n "${job_copies+set}" ] || job_check+=(--shared)
    check_node() { # on each node
        local python run=$HPC_LAUNCH_RUN_DIR
        cannot() { printf '{"node":"%s","done":true,"results":[{"check":"start","ok":false,"text":"%s"}]}\n' "$SLURMD_NODENAME" "$1"; }
        [ -r "$run/hooks/agent.pyz" ] || { cannot 'the run folder is not shared with this node' && exit 0; }
        python=$(command -v python3) || { cannot 'no python3' && exit 0; }
        cd "$job_workdir" 2>/dev/null || cd / # Slurm has chosen /tmp then, where anybody can put a module
        "$python" -I "$run/hooks/agent.pyz" check "$HPC_LAUNCH_ATTEMPT_DIR" "$SLURMD_NODENAME" \
            --workdir="$job_workdir" --master="$MASTER_ADDR" --port="$MASTER_PORT" \
            --writable="${TMPDIR:-/tmp}" "${job_check[@]}" ||
            cannot "python3 does not work"
        exit 0 # a failed step would count as a failure of the job
    }
    check_step() { # NAME BODY SRUN...: start a task on each node; the last lines of its log say that they have ended
        local started
        trap 'kill -s TERM "$started"' TERM
        [ -z "${job_check_gpus:-}" ] || unset SLURM_TRES_PER_TASK SLURM_GPUS_PER_TASK # else it gets the GPUs of one task
        "${@:3}" --job-name=hpc-launch "${on_hosts[@]}" ${job_check_gpus:+--gres=gpu:"$job_check_gpus" --gpu-bind=none} \
            --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1 --output="$attempt_dir/agent/$1.log" bash -c "$2" </dev/null &
        started=$!
        wait "$started"
        printf '{"node":"%s","done":true,"part":"'"$1"'"}\n' "${hosts[@]}" >>"$attempt_dir/agent/$1.log"
    }
    end_step() { # PROCESS: what is left of the step hangs
        for _ in {1..200}; do
            kill -0 "$1" 2>/dev/null || return
            sleep 0.05
        done
        kill -s TERM "$1" 2>/dev/null
    }
    mkdir -p "$attempt_dir/agent" || return 0
    for name in "${hosts[@]}"; do nodes+=(--node="$name"); done
    "$python" -I "$agent" judge "$attempt_dir" --job="$job_id" --port="$MASTER_PORT" "${nodes[@]}" \
        "${job_check[@]}" </dev/null &
    judge=$!
    ! declare -F start_inside >/dev/null || start_inside
    body=$(declare -p job_check job_workdir && declare -f check_node && echo check_node)
    check_step check "$body" srun &
    step=($!)
    while :; do # a trapped signal ends `wait` early
        interrupted=
        wait "$judge"
        code=$?
        [ -n "$interrupted" ] || break
    done
    case $code in 76 | 78) return "$code" ;; esac # a node may hang: the end of the job ends what is left there
    [ "$code" -eq 0 ] || say "node check: ended with $code, so the training starts unchecked"
    for name in "${step[@]}" $inside; do end_step "$name"; done
    step=()
}
enter check
check_nodes || exit
[ -z "${job_check_only:-}" ] || exit 0
enter environment
