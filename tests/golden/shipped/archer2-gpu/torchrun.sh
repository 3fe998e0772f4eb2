#!/bin/bash
# shellcheck disable=SC2016,SC2329
# tiny on site archer2-gpu: 2 nodes x 4 processes, started by torchrun.
# Written by hpc-launch 0.1.0. Plain bash: read it, change it, run it by hand (`sbatch FILE`).
# A comment at the end of a line tells where its setting comes from.

# --- 1. What is asked of Slurm ---
#SBATCH --job-name=tiny                                      # job.yaml:2
#SBATCH --partition=gpu                                      # archer2-gpu.yaml:28
#SBATCH --qos=gpu-exc                                        # archer2-gpu.yaml:28
#SBATCH --account=z01                                        # user.yaml:30
#SBATCH --nodes=2                                            # job.yaml:3
#SBATCH --ntasks-per-node=1                                  # one task a node: torchrun starts the rest
#SBATCH --cpus-per-task=32                                   # archer2-gpu.yaml:17
#SBATCH --gpus=8                                             # archer2-gpu.yaml:21
#SBATCH --exclusive                                          # archer2-gpu.yaml:28
#SBATCH --time=00:15:00                                      # job.yaml:4
#SBATCH --no-requeue                                         # who retries is decided once
#SBATCH --open-mode=append                                   # a requeue must not empty the log
#SBATCH --output=tiny-%j.out                                 # for a start by hand; `submit` names a file in the run folder
#SBATCH --hint=nomultithread                                 # archer2-gpu.yaml:13
#SBATCH --distribution=block:block                           # archer2-gpu.yaml:13

# --- 2. This attempt: its folder, and the right to run it ---
set -o pipefail
now() { printf '%(%s)T' -1; }
say() { printf '[hpc-launch %(%F %T)T] %s\n' -1 "$*"; }
die() { say "$*" >&2; exit 1; }
job_id=$SLURM_JOB_ID
[ -z "${HPC_LAUNCH_IN_ALLOCATION:-}" ] || job_id=$HPC_LAUNCH_JOB_ID # `hpc-launch run`: one of several in this allocation
nodes=$SLURM_JOB_NODELIST
restart=${SLURM_RESTART_COUNT:-0}
attempt_dir=${1:-}
if [ -z "$attempt_dir" ]; then # started by hand, not by `hpc-launch submit`
    attempt_dir=/home/alice/runs/tiny-by-hand-$job_id/attempts/001
    mkdir -p "$attempt_dir"
fi
run_dir=${attempt_dir%/attempts/*}
if [ "$restart" -gt 0 ]; then # Slurm started the same job again: an attempt with records of its own
    until mkdir "$attempt_dir" 2>/dev/null; do
        [ -d "$attempt_dir" ] || die "cannot make $attempt_dir"
        if ! grep -qs "\"job_id\": \"$job_id\"" "$attempt_dir/job.json" && ! grep -qsxe "$job_id" -e "void .*" "$attempt_dir/claim"; then
            say "the run went on without job $job_id, in $attempt_dir. Nothing was started."
            exit 75
        fi
        printf -v attempt_dir '%s/attempts/%03d' "$run_dir" "$((10#${attempt_dir##*/} + 1))"
    done
    printf '{"job_id": "%s", "restart": %d}\n' "$job_id" "$restart" >"$attempt_dir/job.json"
    exec >>"$attempt_dir/batch.log" 2>&1
fi

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
call_after() { # EXIT_CODE: is another attempt to follow? Every later hpc-launch command asks the same, so this may fail
    if [ ! -f "$run_dir/after.sh" ] || { [ "$1" -eq 0 ] && [ "$warned" = null ]; }; then return; fi
    trap '' USR1 TERM INT HUP # the end is on record
    timeout -k 5 60 bash "$run_dir/after.sh" "$attempt_dir" >>"$attempt_dir/hook.log" 2>&1 </dev/null ||
        say "the end hook cannot run here ($attempt_dir/hook.log): the next hpc-launch command looks after the run"
}
at_exit() { # EXIT_CODE
    record end.json "$1" # at once: what comes after may take a while
    call_after "$1"
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
HPC_LAUNCH_CODE=$run_dir/code # as it was at submission; started by hand, as it is now
[ -d "$HPC_LAUNCH_CODE" ] || HPC_LAUNCH_CODE=/home/alice/project
export HPC_LAUNCH_CODE
export HPC_LAUNCH_STOP_FILE=$attempt_dir/stop # appears when the training shall save and end
export HPC_LAUNCH_DONE_FILE=$attempt_dir/done # the training may make it when no step is left
export HPC_LAUNCH_ATTEMPT=$((10#0${attempt_dir//*[!0-9]/}))
export HPC_LAUNCH_END_TIME=${SLURM_JOB_END_TIME:-$((started + 900))} # of the time limit, in seconds since 1970
say "job $job_id on $nodes, attempt in $attempt_dir; the training's output is in logs/node-*.log there"
export HPC_LAUNCH_RESUME_FROM='' HPC_LAUNCH_RESUME_NAME='' HPC_LAUNCH_RESUME_STEP=''

# --- 3. The software and the environment ---
module load rocm || die 'module load rocm failed'            # archer2-gpu.yaml:32
module load craype-accel-amd-gfx90a || die 'module load craype-accel-amd-gfx90a failed' # archer2-gpu.yaml:32
module load craype-x86-milan || die 'module load craype-x86-milan failed' # archer2-gpu.yaml:32
export PYTHONUNBUFFERED=1                                    # a line of the log appears when it is printed
export PYTHONFAULTHANDLER=1                                  # stacks of all threads at a fatal signal
export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                     # NCCL's last collectives, at a timeout
export TORCH_NCCL_DUMP_ON_TIMEOUT=1                          # NCCL's last collectives, at a timeout
export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
export OMP_NUM_THREADS=8                                     # cores of a node / processes on it
export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
export MIOPEN_USER_DB_PATH=/tmp/alice-miopen-"$HPC_LAUNCH_JOB_ID" # amd.yaml:11
export MIOPEN_CUSTOM_CACHE_DIR=/tmp/alice-miopen-"$HPC_LAUNCH_JOB_ID" # amd.yaml:11
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" # for `import hpc_launch_hooks`
cd /home/alice/project || die 'no folder /home/alice/project'

# --- 4. Where the processes meet ---
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
[ "${#hosts[@]}" -eq 2 ] || die "expected 2 nodes, got ${#hosts[@]}: $SLURM_JOB_NODELIST"
export MASTER_ADDR=${hosts[0]}
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
# Stands before the launcher on each node and starts the watcher of the node beside it: who died first, does it hang,
# how much memory is left. Without a python3 the training runs all the same.
watched() { # COMMAND...
    local python agent=$HPC_LAUNCH_RUN_DIR/hooks/hpc_launch_watch.py from=()
    [ -z "${LOCAL_RANK:-}" ] || from=(--each-process) # started once a process: the first one of the node does it
    if [ "${LOCAL_RANK:-0}" -eq 0 ] && [ -f "$agent" ] && python=$(command -v python3); then
        # shellcheck disable=SC2153 # comes from what starts the nodes
        "$python" -I "$agent" "$HPC_LAUNCH_ATTEMPT_DIR" "$SLURM_NODEID" "$$" "${from[@]}" \
            --hang-after=1800 --busy-after=7200 --sample-every=30 </dev/null >/dev/null 2>&1 &
    fi
    exec "$@"
}
{ printf '#!/bin/bash\n'; declare -f watched; printf 'watched "$@"\n'; } >"$attempt_dir/watch.sh" || die "cannot write $attempt_dir/watch.sh"

# --set launcher=torchrun. The node's rank is taken on the node itself. Static rendezvous: ranks follow the order of the nodes.
on_each_node() {
    local node=$SLURM_NODEID logs=$HPC_LAUNCH_ATTEMPT_DIR/logs
    export TORCHELASTIC_ERROR_FILE=$logs/node-$node.error.json
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        python3 -m torch.distributed.run \
        --nnodes=2 --nproc-per-node=4 --node-rank="$node" \
        --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        "$HPC_LAUNCH_CODE"/train.py \
            --lr 1e-3
}

# Once on every node, before anything is started there.
on_nodes_first() {
    fail() { printf '[hpc-launch] %s: %s\n' "$HOSTNAME" "$*" >&2; exit 1; }
    mkdir -p -- /tmp/alice-miopen-"$HPC_LAUNCH_JOB_ID" || fail 'mkdir -p -- /tmp/alice-miopen-$HPC_LAUNCH_JOB_ID failed' # amd.yaml:11
}
{ declare -f on_nodes_first; echo on_nodes_first; } >"$attempt_dir/first.sh" || die "cannot write $attempt_dir/first.sh"
srun --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1 --kill-on-bad-exit=1 bash "$attempt_dir/first.sh" </dev/null ||
    die "the nodes could not be prepared"

# --- 6. Start it, pass warnings on, wait for its end ---
{ declare -f on_each_node; echo on_each_node; } >"$attempt_dir/node.sh" || die "cannot write $attempt_dir/node.sh"
phase=training
cpus=${SLURM_CPUS_PER_TASK:-32}
[ -z "${HPC_LAUNCH_IN_ALLOCATION:-}" ] || cpus=32 # an allocation of another shape: what the job itself asks for
words=/proc/$$/fd/2 said=0 # what srun will say in the job's output, if that is a file
[ ! -f "$words" ] || said=$(stat -Lc %s "$words")
# --kill-on-bad-exit and --wait: when one node fails the others end too, not at the time limit.
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task="$cpus" \
    --kill-on-bad-exit=1 --wait=60 --export=ALL \
    --output="$attempt_dir/logs/node-%n.log" --open-mode=append \
    bash "$attempt_dir/node.sh" </dev/null &
step=($!)
while :; do # a trapped signal ends `wait` early, with a code that is not srun's
    interrupted=
    wait "${step[0]}"
    code=$?
    [ -n "$interrupted" ] || break
done
phase=ended
if [ "$code" -ne 0 ] && [ -f "$words" ]; then
    # srun's own code is the highest, also of the tasks that it ended itself; it says in turn how each of them ended.
    first=$(tail -c "+$((said + 1))" "$words" | grep -m 1 -oE '^srun: error: [^ ]+: tasks? [0-9,-]+: .*')
    case $first in
        *': Exited with exit code '*) code=${first##* } ;;
        *': Killed') code=137 ;;
        *': Aborted'*) code=134 ;;
        *': Segmentation fault'*) code=139 ;;
    esac
fi
say "the step ended with exit code $code"
[ -z "$ended_by" ] || [ "$code" -ne 0 ] || code=1
exit "$code"
