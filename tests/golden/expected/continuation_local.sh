#!/bin/bash
# shellcheck disable=SC2016,SC2329
# continued_local on site local: 1 node x 2 processes, started by torchrun.
# Written by hpc-launch 0.1.0. Plain bash: read it, change it, run it by hand (`bash FILE`).
# A comment at the end of a line tells where its setting comes from.

# --- 2. This attempt: its folder, and the right to run it ---
set -o pipefail
now() { printf '%(%s)T' -1; }
say() { printf '[hpc-launch %(%F %T)T] %s\n' -1 "$*"; }
die() { say "$*" >&2; exit 1; }
job_id=${HPC_LAUNCH_JOB_ID:-by-hand-$$}
nodes=$(uname -n)
restart=0
attempt_dir=${1:-}
if [ -z "$attempt_dir" ]; then # started by hand, not by `hpc-launch submit`
    attempt_dir=/home/alice/runs/continued_local-by-hand-$job_id/attempts/001
    mkdir -p "$attempt_dir"
fi
run_dir=${attempt_dir%/attempts/*}

# Only one job may run an attempt: whoever creates `claim` first. Without this, a submission that was given up and
# repeated could train twice.
if ! (set -o noclobber; printf '%s\n' "$job_id" >"$attempt_dir/claim") 2>/dev/null; then
    owner=$(cat "$attempt_dir/claim" 2>/dev/null) || owner="nobody: $attempt_dir cannot be written"
    if [ "$owner" != "$job_id" ]; then
        say "this attempt is not for job $job_id but for: $owner. Nothing was started."
        exit 75
    fi
fi
mkdir -p "$attempt_dir/logs" || die "cannot write to $attempt_dir"

# The end record tells the outcome without asking Slurm. It is written whatever ends this script, SIGKILL apart.
phase=environment ended_by='' warned=null warned_by='' lost_nodes=0 resumed=null saved=null started=$(now)
record() { # FILE EXIT_CODE
    local finished=null # true where the training itself says that nothing is left to do
    [ ! -e "$attempt_dir/done" ] || finished=true
    if [ "$warned" = null ] && [ -e "$attempt_dir/stop" ]; then # by the guard of a node, or by hand
        warned=$(stat -c %Y "$attempt_dir/stop")
        read -r warned_by <"$attempt_dir/stop"
    fi
    printf '{"job_id": "%s", "restart": %d, "exit_code": %d, "signal": "%s", "phase": "%s", "started": %d, "ended": %d, "warned": %s, "warned_by": "%s", "lost_nodes": %d, "resumed_step": %s, "saved_step": %s, "finished": %s, "nodes": "%s"}\n' \
        "$job_id" "$restart" "$2" "$ended_by" "$phase" "$started" "$(now)" "$warned" "${warned_by//[!A-Z0-9]/}" "$lost_nodes" "$resumed" "$saved" "$finished" "$nodes" >"$attempt_dir/.$1.$job_id" &&
        mv -f "$attempt_dir/.$1.$job_id" "$attempt_dir/$1"
}
at_exit() { # EXIT_CODE
    record end.json "$1" # at once: what comes after may take a while
    [ "$phase" = environment ] || { find_checkpoint >/dev/null; saved=${checkpoint_step:-null}; record end.json "$1"; }
}
trap 'at_exit $?' EXIT
record start.json 0

step=() # the processes that this shell waits for
on_warning() { # Slurm's warning before the time limit, or a preemption
    warned=$(now) warned_by=USR1
    say "warned: the end is near; asking the training to save ($HPC_LAUNCH_STOP_FILE)"
    : >"$HPC_LAUNCH_STOP_FILE"
}
on_end() { # SIGNAL EXIT_CODE: time limit or cancel; little time is left, so the record comes first
    ended_by=$1
    say "ended by SIG$1"
    : >"$attempt_dir/ending"
    record end.json "$2"
    [ "$phase" = training ] || exit "$2"
    kill -s TERM "${step[@]}" 2>/dev/null
}
trap 'interrupted=1; on_warning' USR1
trap 'interrupted=1; on_end TERM 143' TERM
trap 'interrupted=1; on_end INT 130' INT
trap 'interrupted=1; on_end HUP 129' HUP

export HPC_LAUNCH_RUN_DIR=$run_dir HPC_LAUNCH_ATTEMPT_DIR=$attempt_dir HPC_LAUNCH_JOB_ID=$job_id
export HPC_LAUNCH_STOP_FILE=$attempt_dir/stop # appears when the training shall save and end
export HPC_LAUNCH_DONE_FILE=$attempt_dir/done # the training may make it when no step is left
export HPC_LAUNCH_ATTEMPT=$((10#0${attempt_dir//*[!0-9]/}))
export HPC_LAUNCH_END_TIME=''
say "job $job_id on this machine, attempt in $attempt_dir; the training's output is in logs/node-*.log there"

# The checkpoint to go on from: the newest whole one. One that a killed job left torn is passed over.
checkpoints=/home/alice/out
checkpoint_names='^(last\.pt)$'
is_whole() { # CHECKPOINT
    local file head end found
    local newest=''
    read -r newest 2>/dev/null <"$checkpoints"/latest
    if [ "${1##*/}" != "$newest" ]; then # as newest it stands for all before it as well
        return 1
    fi
    found=''
    while IFS= read -r -d '' file; do # torch.save writes zip files: a torn one begins as such and does not end so
        found=1 head='' end=''
        IFS= LC_ALL=C read -r -N 4 head <"$file" || :
        [ "$head" = $'PK\003\004' ] || continue
        IFS= LC_ALL=C read -r -N 4 end < <(tail -c 22 "$file")
        [ "$end" = $'PK\005\006' ] || return 1
    done < <(find -H "$1" -xtype f -print0)
    [ -n "$found" ]
}
find_checkpoint() { # sets checkpoint and checkpoint_step, both empty where there is none
    local LC_ALL=C path at=0 found=() steps=()
    checkpoint='' checkpoint_step=''
    for path in "$checkpoints"/*; do
        [ -e "$path" ] && [[ ${path##*/} =~ $checkpoint_names ]] || continue
        at=$(stat -L -c %Y "$path") && found[at]=$path
    done
    steps=("${!found[@]}") # in rising order
    for ((at = ${#steps[@]} - 1; at >= 0; at--)); do
        if is_whole "${found[steps[at]]}"; then
            checkpoint=${found[steps[at]]}
            return
        fi
        say "passed over $(printf %q "${found[steps[at]]##*/}"): this checkpoint is not whole"
    done
}
find_checkpoint
resumed=${checkpoint_step:-null}
export HPC_LAUNCH_RESUME_FROM=$checkpoint HPC_LAUNCH_RESUME_NAME=${checkpoint##*/} HPC_LAUNCH_RESUME_STEP=$checkpoint_step
[ -z "$checkpoint" ] || say "going on from $(printf %q "$checkpoint")"

# --- 3. The software and the environment ---
export PYTHONUNBUFFERED=1                                    # a line of the log appears when it is printed
export PYTHONFAULTHANDLER=1                                  # stacks of all threads at a fatal signal
export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                     # NCCL's last collectives, at a timeout
export TORCH_NCCL_DUMP_ON_TIMEOUT=1                          # NCCL's last collectives, at a timeout
export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
export OMP_NUM_THREADS=8                                     # cores of a node / processes on it
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" # for `import hpc_launch_hooks`
cd /home/alice/project || die 'no folder /home/alice/project'

# --- 4. Where the processes meet ---
export MASTER_ADDR=127.0.0.1
# From the job id, so that jobs on one node do not meet; below 32768, where ports for outgoing connections begin.
number=${job_id//[!0-9]/}
MASTER_PORT=$((10000 + (10#0$number + 7919 * restart) % 20000))
for _ in {1..20}; do # this shell is on the first node: pass over a port that somebody listens on
    (exec 3<>"/dev/tcp/127.0.0.1/$MASTER_PORT") 2>/dev/null || break
    MASTER_PORT=$((10000 + (MASTER_PORT - 10000 + 1) % 20000))
done
export MASTER_PORT
say "rendezvous at $MASTER_ADDR:$MASTER_PORT"

# --- 5. What runs on each node ---
# Stands before the launcher on each node. When the stop file appears, the training's own processes get a signal if
# the job file asks for one; the launcher never does, for it would end them. A SIGTERM that comes while the job is not
# ending is that of a preemption: it makes the stop file, and goes no further.
guard() { # COMMAND...
    local child code helpers=() HPC_LAUNCH_GUARD=$$-$RANDOM$RANDOM asked=''
    export HPC_LAUNCH_GUARD
    appeared() { # NAME; listing the folder makes a file server's client look anew
        local file
        for file in "$HPC_LAUNCH_ATTEMPT_DIR"/*; do
            [ "${file##*/}" != "$1" ] || return 0
        done
        return 1
    }
    ranks() { # sets `pids`: the topmost process of each rank that is no shell and no helper of a container
        local folder word stat exe pid parent
        local -A above=() rank=()
        pids=()
        for folder in /proc/[0-9]*; do
            [ -O "$folder" ] || continue
            local own='' of=''
            while IFS= read -r -d '' word; do
                case $word in
                    HPC_LAUNCH_GUARD="$HPC_LAUNCH_GUARD") own=1 ;;
                    RANK=*) of=${word#*=} ;;
                esac
            done 2>/dev/null <"$folder/environ"
            [ -n "$own" ] && [ -n "$of" ] || continue
            while IFS= read -r -d '' word; do # the watcher of the node is no training
                [ "$word" != "$HPC_LAUNCH_RUN_DIR/hooks/hpc_launch_watch.py" ] || continue 2
            done 2>/dev/null <"$folder/cmdline"
            read -r stat 2>/dev/null <"$folder/stat" || continue
            stat=${stat##*) }
            stat=${stat#* }
            pid=${folder##*/}
            above[$pid]=${stat%% *}
            exe=$(readlink "$folder/exe") || continue
            case ${exe##*/} in
                bash | sh | dash | ksh | zsh | busybox | sed | tee | cat | env | time | numactl | starter* | apptainer | singularity | podman* | conmon | crun | runc | ch-run | shifter) ;;
                *) rank[$pid]=$of ;;
            esac
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
        until ranks && [ "${#pids[@]}" -gt 0 ] && kill -s TERM "${pids[@]}"; do
            kill -0 "$child" 2>/dev/null || return
            read -r -t 1 -u "$clock" || :
        done
        printf '[hpc-launch %(%F %T)T] sent SIGTERM to the training: processes %s\n' -1 "${pids[*]}" >&2
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
    watch </dev/null >/dev/null &
    helpers+=($!)
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
    # The other nodes' guards will get a SIGTERM now, which is no preemption's.
    [ "$code" -eq 0 ] || : >"$HPC_LAUNCH_ATTEMPT_DIR/ending"
    exit "$code"
}
{ printf '#!/bin/bash\n'; declare -f guard; printf 'guard "$@"\n'; } >"$attempt_dir/guard.sh" || die "cannot write $attempt_dir/guard.sh"

# Stands before the launcher on each node and starts the watcher of the node beside it: who died first, does it hang,
# how much memory is left. Without a python3 the training runs all the same.
watched() { # COMMAND...
    local python agent=$HPC_LAUNCH_RUN_DIR/hooks/hpc_launch_watch.py from=()
    [ -z "${LOCAL_RANK:-}" ] || from=(--each-process) # started once a process: the first one of the node does it
    if [ "${LOCAL_RANK:-0}" -eq 0 ] && [ -f "$agent" ] && python=$(command -v python3); then
        # shellcheck disable=SC2153 # comes from what starts the nodes
        "$python" -I "$agent" "$HPC_LAUNCH_ATTEMPT_DIR" "$HPC_LAUNCH_NODE" "$$" "${from[@]}" \
            --hang-after=1800 --busy-after=7200 --sample-every=30 </dev/null >/dev/null 2>&1 &
    fi
    exec "$@"
}
{ printf '#!/bin/bash\n'; declare -f watched; printf 'watched "$@"\n'; } >"$attempt_dir/watch.sh" || die "cannot write $attempt_dir/watch.sh"

# default. The node's rank is taken on the node itself. Static rendezvous: ranks follow the order of the nodes.
on_each_node() {
    local node=$HPC_LAUNCH_NODE logs=$HPC_LAUNCH_ATTEMPT_DIR/logs
    export TORCHELASTIC_ERROR_FILE=$logs/node-$node.error.json
    export CUDA_VISIBLE_DEVICES=$((node * 4 + 0)),$((node * 4 + 1)),$((node * 4 + 2)),$((node * 4 + 3))
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/guard.sh" \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        python3 -m torch.distributed.run \
        --nnodes=1 --nproc-per-node=2 --node-rank="$node" \
        --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        --no-python \
        ./train
}

# --- 6. Start it, pass warnings on, wait for its end ---
{ declare -f on_each_node; echo on_each_node; } >"$attempt_dir/node.sh" || die "cannot write $attempt_dir/node.sh"
phase=training
for ((node = 0; node < 1; node++)); do
    HPC_LAUNCH_NODE=$node bash "$attempt_dir/node.sh" >>"$attempt_dir/logs/node-$node.log" 2>&1 </dev/null &
    step+=($!)
done
# As srun would: when one node fails the others are ended too, and the first failure is the result.
code=0
while [ "${#step[@]}" -gt 0 ]; do
    sleep 0.2
    for node in "${!step[@]}"; do
        kill -0 "${step[node]}" 2>/dev/null && continue
        wait "${step[node]}"
        node_code=$?
        unset "step[node]"
        if [ "$node_code" -ne 0 ] && [ "$code" -eq 0 ]; then
            code=$node_code
            say "node $node ended with exit code $code"
            : >"$attempt_dir/ending"
            kill -s TERM "${step[@]}" 2>/dev/null
        fi
    done
done
phase=ended
say "the step ended with exit code $code"
[ -z "$ended_by" ] || [ "$code" -ne 0 ] || code=1
exit "$code"
