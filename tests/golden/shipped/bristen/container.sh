#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# tiny on site bristen: 2 nodes x 4 processes, started by srun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=tiny                                      # job.yaml:2
#SBATCH --partition=normal                                   # bristen.yaml:29
#SBATCH --account=a-abc                                      # user.yaml:8
#SBATCH --nodes=2                                            # job.yaml:3
#SBATCH --ntasks-per-node=4                                  # one task per process
#SBATCH --cpus-per-task=16                                   # 64 CPUs for 4 tasks
#SBATCH --time=00:15:00                                      # job.yaml:4
#SBATCH --no-requeue                                         # hpc-launch resubmits; Slurm must not requeue
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=tiny-%j.out                                 # for manual starts; `submit` logs to the run folder

# === Environment ===
job_environment() {
    ulimit -c 0 || die 'ulimit -c 0 failed'                  # cscs.yaml:31; a crash of many processes would leave many large files
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export PYTHONNOUSERSITE=1                                # packages in the home are not the image's
    export OMP_NUM_THREADS=16                                # cores of a node / processes on it
    export NCCL_SOCKET_IFNAME=hsn                            # slingshot.yaml:13
    export TRITON_HOME=/dev/shm/alice-triton-"$HPC_LAUNCH_JOB_ID" # cscs.yaml:21
    export FI_CXI_DISABLE_HOST_REGISTER=1                    # slingshot.yaml:16
    export FI_CXI_DEFAULT_CQ_SIZE=131072                     # slingshot.yaml:17
    export NCCL_CROSS_NIC=1                                  # slingshot.yaml:23
    export NCCL_NET_GDR_LEVEL=PHB                            # slingshot.yaml:24
    export FI_MR_CACHE_MONITOR=userfaultfd                   # slingshot.yaml:25
    export NCCL_NET='AWS Libfabric'                          # slingshot.yaml:27; without the plugin, the job fails instead of falling back to TCP
    export FI_CXI_DEFAULT_TX_SIZE=16384                      # cscs.yaml:24
    export FI_CXI_RX_MATCH_MODE=software                     # cscs.yaml:25
    export NCCL_PROTO='^LL128'                               # cscs.yaml:27; the centre disables this protocol, which NCCL 2.27 enabled and which is slower here
    export MPICH_GPU_SUPPORT_ENABLED=0                       # cscs.yaml:28; MPI's GPU support conflicts with NCCL
    export TORCH_NCCL_ASYNC_ERROR_HANDLING=1                 # cscs.yaml:29
    export CUDA_CACHE_DISABLE=1                              # cscs.yaml:29
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
on_nodes_first() { # once, before anything else is started there
    fail() { printf '[hpc-launch] %s: %s\n' "$HOSTNAME" "$*" >&2; exit 1; }
    private_folder /dev/shm/alice-triton-"$HPC_LAUNCH_JOB_ID" || fail '/dev/shm/alice-triton-$HPC_LAUNCH_JOB_ID cannot be created, belongs to another user, or can be replaced by one' # cscs.yaml:21
}
# cscs.yaml:47. srun starts each process, which takes its rank from the variables set there.
on_each_node() {
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    export LOCAL_WORLD_SIZE=4 GROUP_RANK=$SLURM_NODEID
    ulimit -c 0                                              # cscs.yaml:31; a crash of many processes would leave many large files
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        python3 "$HPC_LAUNCH_CODE"/train.py \
        --lr 1e-3
}
python_in_image() { # for the node check: start Python as the training does; what precedes the mark are errors of the image
    ulimit -c 0                                              # cscs.yaml:31; a crash of many processes would leave many large files
    exec /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        /bin/sh -c 'echo "hpc-launch: started" >&2; exec "$0" "$@" 2>&1' \
        python3 "$@"
}
srun_image() { # for the node check: a step in the image, beside the one on the nodes
    exec srun \
        --environment=pytorch \
        "$@"
}

# === How the nodes are started ===
start_nodes() {
    # When one process fails the others end too; when one ends well the others, which may still save, go on.
    exec srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --environment=pytorch \
        --output="$attempt_dir/logs/node-%n.rank-%t.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/tiny-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2 job_cpus_per_task=16 job_time_limit=900 job_node_rank=SLURM_NODEID
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=4 --gpu-vendor=nvidia --memory-mib=524288 --interfaces=hsn --python=python3 '--script=${HPC_LAUNCH_CODE}/train.py' --image)

# ===== Below: the same in every job. Static shell, from slurm_templates/parts/ =====

# --- Messages ---
set -o pipefail
job_umask=$(umask) # of the training; only the user may change what this script writes and then runs
umask go-w
now() { printf '%(%s)T' -1; }
say() { printf '[hpc-launch %(%F %T)T] %s\n' -1 "$*"; }
die() { say "$*" >&2; exit 1; }

# --- The job, by Slurm's variables ---
job_id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job_id=${job_id:-$SLURM_JOB_ID}
[ -z "${HPC_LAUNCH_IN_ALLOCATION:-}" ] || job_id=$HPC_LAUNCH_JOB_ID # `hpc-launch run`: one of several in this allocation
nodes=$SLURM_JOB_NODELIST
place=$nodes
restart=${SLURM_RESTART_COUNT:-0}
first_step=${2:-} # the number of this attempt's first step, where it is not the first attempt in this job
end_time=${SLURM_JOB_END_TIME:-${3:-}}
on_hosts=() # with spares: options of srun
call_after() { # EXIT_CODE: start the next attempt if one is due. May fail: every later hpc-launch command does the same
    local here=(--here)
    [ -f "$run_dir/after.sh" ] && [ -O "$run_dir/after.sh" ] || return 0
    if [ "$1" -eq 0 ] && [ "$warned" = null ]; then
        # A stage of a pipeline: others may follow. A point of a sweep: there may be room for further points now.
        [ -e "$run_dir/stage.json" ] || { [ -f "$run_dir/../sweep.json" ] && [ ! -e "$run_dir/../submitted" ]; } || return 0
        here=(--well)
    fi
    trap '' USR1 TERM INT HUP # the end record is written
    [ -z "$ended_by" ] && [ -z "${HPC_LAUNCH_IN_ALLOCATION:-}" ] || here=()
    run_hook "$attempt_dir" "${here[@]}"
    [ "${#here[@]}" -eq 0 ] || continue_here
}
run_hook() { # ATTEMPT_FOLDER [OPTION]
    # A stage of a pipeline may submit a whole sweep.
    timeout -k 5 "$([ -e "$run_dir/stage.json" ] && echo 300 || echo 60)" bash "$run_dir/after.sh" "$@" >>"$1/hook.log" 2>&1 </dev/null ||
        say "the end hook cannot run here (see $1/hook.log); the next hpc-launch command continues the run"
}

# --- Folders that other users cannot replace ---
in_place() { # FOLDER [GROUP...]: fails if a user who is in none of these groups can put another folder in its place
    local path above place owner group mode
    case $1 in /*) ;; *) return 1 ;; esac
    place=$(cd -P -- "$1" && pwd -P) || return
    for path in "$1" "$place"; do
        while [ -n "$path" ]; do
            above=${path%/*}
            read -r owner mode < <(stat -L -c '%u %a' -- "${above:-/}") || return
            if (((8#$mode & 2) != 0)); then # everybody can create files there: the sticky bit and the owners count
                if (((8#$mode & 8#1000) == 0 || (owner != 0 && owner != UID))); then return 1; fi
                read -r owner group < <(stat -c '%u %g' -- "$path") || return
                if ((owner != 0 && owner != UID)) && { [ -L "$path" ] || [[ " ${*:2} " != *" $group "* ]]; }; then return 1; fi
            fi
            path=$above
        done
    done
}

# --- Attempt folder ---
attempt_dir=${1:-}
if [ -z "$attempt_dir" ]; then # started by hand, not by `hpc-launch submit`
    run_dir=$job_by_hand-$job_id attempt_dir=$run_dir/attempts/001
    [ -d "${run_dir%/*}" ] || { mkdir -p "${run_dir%/*}" && chmod go-w "${run_dir%/*}"; }
    mkdir -m 755 "$run_dir" 2>/dev/null && setfacl -k "$run_dir" 2>/dev/null # a default ACL would replace the umask
    # Others may guess the name. After a requeue the folder is this job's own.
    for folder in "$run_dir" "$run_dir/attempts" "$attempt_dir"; do
        { [ -d "$folder" ] || mkdir "$folder"; } && [ -n "$(find "$folder" -maxdepth 0 -type d -uid "$EUID" ! -perm /022)" ] ||
            die "cannot use $folder: it cannot be created, or other users can change it"
    done
    in_place "$run_dir" "${GROUPS[@]}" || die "cannot use $run_dir: another user can replace it or a folder above it"
fi
run_dir=${attempt_dir%/attempts/*}

# --- Requeue: Slurm started the same job again, which is an attempt with its own records ---
if [ "$restart" -gt 0 ] && [ -z "$first_step" ]; then
    until mkdir "$attempt_dir" 2>/dev/null; do
        [ -d "$attempt_dir" ] || die "cannot create $attempt_dir"
        if ! grep -qs "\"job_id\": \"$job_id\"" "$attempt_dir/job.json" && ! grep -qsxe "$job_id" -e "void .*" "$attempt_dir/claim"; then
            say "the run continued without job $job_id, in $attempt_dir. Nothing was started."
            exit 75
        fi
        printf -v attempt_dir '%s/attempts/%03d' "$run_dir" "$((10#0${attempt_dir//*[!0-9]/} + 1))"
    done
    printf '{"job_id": "%s", "restart": %d}\n' "$job_id" "$restart" >"$attempt_dir/job.json"
    exec >>"$attempt_dir/batch.log" 2>&1
fi

# --- The next attempt in the same job ---
# The end hook prepares it, if the job has time and nodes for it. What is left of this attempt is ended first: its
# processes may still write checkpoints. Then this shell becomes that attempt's script, with the environment that the
# job began with.
first_umask=$job_umask first_folder=$PWD
continue_here() { # start the attempt that the end hook prepared for this job, if it did
    local next job_environ=()
    printf -v next '%s/attempts/%03d' "$run_dir" "$((10#0${attempt_dir//*[!0-9]/} + 1))"
    grep -qs "\"job_id\": \"$job_id\"" "$next/job.json" || return
    say "the run continues in this job, in $next"
    if ! clean_nodes; then
        (set -o noclobber; printf 'void never submitted: processes of attempt %s may be left\n' "${attempt_dir##*/}" >"$next/claim") 2>/dev/null
        run_hook "$next"
        return
    fi
    mapfile -d '' -t job_environ <"/proc/$$/environ" # as this job began
    exec >>"$next/batch.log" 2>&1
    umask "$first_umask"
    cd "$first_folder" || cd /
    set -- "$BASH" "$next/script.sh" "$next" "$first_step" "$HPC_LAUNCH_END_TIME"
    ! shopt -q login_shell || set -- "$1" -l "${@:2}"
    for job_variable in $(compgen -e); do unset -v "$job_variable"; done 2>/dev/null
    for job_variable in "${job_environ[@]}"; do
        [[ ! $job_variable =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || export "${job_variable?}" 2>/dev/null
    done
    trap - USR1 TERM INT HUP
    exec "$@"
}
clean_nodes() { # end what is left of this attempt on each node; sets first_step
    local answers body count=$SLURM_JOB_NUM_NODES reached=() lost='' host
    if [ -n "${job_spares:-}" ]; then
        [ ! -f "$attempt_dir/agent/lost" ] || lost=$(<"$attempt_dir/agent/lost") # out of reach; and what Slurm has given up:
        lost+=" $(timeout 10 sinfo --noheader --Node --nodes="$nodes" --states=down --format=%N | tr '\n' ' ')"
        [ -z "${lost// /}" ] || sleep 3 # it may only be cut off: its watcher, if that sees the verdict, ends its ranks first
        for host in "${hosts[@]}"; do [[ " $lost " = *" $host "* ]] || reached+=("$host"); done
        count=${#reached[@]}
        reached=(--nodelist="$(IFS=, && printf '%s' "${reached[*]}")")
    fi
    end_leftovers() { # ATTEMPT_FOLDER: on each node
        local tries folder word own left words # a job that the training submitted has this folder, too
        for tries in {1..20}; do
            left=()
            for folder in /proc/[0-9]*; do
                [ -O "$folder" ] || continue
                own='' words=''
                while IFS= read -r -d '' word; do
                    words+=$word
                    case $word in "HPC_LAUNCH_ATTEMPT_DIR=$1") own+=a ;; "SLURM_JOB_ID=$SLURM_JOB_ID") own+=j ;; esac
                done 2>/dev/null <"$folder/environ"
                # A process that sets its title may write over its environment; a dead one has none.
                [ -n "$words" ] || ! grep -qs "/job_$SLURM_JOB_ID/" "$folder/cgroup" || ! [ -s "$folder/cmdline" ] || own=aj
                [ "${#own}" -lt 2 ] || left+=("${folder##*/}")
            done
            [ "${#left[@]}" -gt 0 ] || break
            kill -s KILL "${left[@]}" 2>/dev/null
            sleep 0.5
        done
        printf '%s %s %s\n' "$SLURM_STEP_ID" "$(uname -n)" "${left[*]:-none}"
    }
    printf -v body '%s\nend_leftovers %q' "$(declare -f end_leftovers)" "$attempt_dir"
    # Without this attempt's folder in their environment: these processes are not what is left of it.
    # --overlap --mem=0: a step that has lost a node keeps what it has until Slurm gives the node up.
    answers=$(env -u SLURM_MEM_PER_CPU -u SLURM_MEM_PER_GPU HPC_LAUNCH_ATTEMPT_DIR='' timeout -k 5 60 srun --job-name=hpc-launch --overlap --mem=0 \
        "${reached[@]}" --nodes="$count" --ntasks="$count" --ntasks-per-node=1 bash -c "$body" </dev/null)
    [ "$(grep -c ' none$' <<<"$answers")" -eq "$count" ] ||
        { say "not all nodes are free of attempt ${attempt_dir##*/}: ${answers:-no answer}"; return 1; }
    read -r first_step _ < <(grep ' none$' <<<"$answers")
    first_step=$((10#0${first_step//[!0-9]/} + 1))
}

# --- Claim ---
# Only one job may run an attempt: the one that creates `claim`. Without this, a submission that was abandoned and
# repeated could train twice.
if ! (set -o noclobber; printf '%s\n' "$job_id" >"$attempt_dir/claim") 2>/dev/null; then
    owner=$(cat "$attempt_dir/claim" 2>/dev/null) || owner="nobody: cannot write to $attempt_dir"
    if [ "$owner" != "$job_id" ]; then
        say "this attempt is not for job $job_id but for: $owner. Nothing was started."
        exit 75
    fi
fi
mkdir -p "$attempt_dir"/{logs,agent/stacks} || die "cannot write to $attempt_dir"

# --- Start and end records ---
# The end record gives the outcome without asking Slurm. It is written however this script ends, except by SIGKILL.
phase='' ended_by='' exit_code='' warned=null warned_by='' lost_nodes=0 resumed=null saved=null started=$(now)
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
        "$job_id" "$restart" "${first_step:-null}" "$2" "$ended_by" "$phase" "$started" "$(now)" "$warned" "${warned_by//[!A-Z0-9]/}" "$lost_nodes" "$resumed" "$saved" "$finished" "$nodes" >"$attempt_dir/.$1.$job_id" &&
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

# --- Signals ---
step=() # the processes that this shell waits for
on_warning() { # Slurm's warning before the time limit, or a preemption
    warned=$(now) warned_by=USR1
    say "warned: the end is near; asking the training to save ($HPC_LAUNCH_STOP_FILE)"
    : >"$HPC_LAUNCH_STOP_FILE"
}
on_end() { # SIGNAL EXIT_CODE: time limit or cancel; little time is left, so write the record first
    ended_by=$1
    say "ended by SIG$1"
    : >"$attempt_dir/ending"
    record end.json "${exit_code:-$2}"
    if [ "$phase" = training ]; then
        kill -s TERM "${step[@]}" 2>/dev/null
    elif [ -z "$exit_code" ]; then # while the script exits, another `exit` would leave out the rest
        exit "$2"
    fi
}
trap 'interrupted=1; on_warning' USR1
trap 'interrupted=1; on_end TERM 143' TERM
trap 'interrupted=1; on_end INT 130' INT
trap 'interrupted=1; on_end HUP 129' HUP

# --- Variables for the training ---
export HPC_LAUNCH_RUN_DIR=$run_dir HPC_LAUNCH_RUN_NAME=${run_dir##*/} HPC_LAUNCH_ATTEMPT_DIR=$attempt_dir HPC_LAUNCH_JOB_ID=$job_id
if [ -n "${job_code:-}" ]; then
    HPC_LAUNCH_CODE=$run_dir/code # as it was at submission; as it is now if started by hand
    [ -d "$HPC_LAUNCH_CODE" ] || HPC_LAUNCH_CODE=$job_code
    export HPC_LAUNCH_CODE
fi
export HPC_LAUNCH_STOP_FILE=$attempt_dir/stop # appears when the training has to save and exit
export HPC_LAUNCH_DONE_FILE=$attempt_dir/done # the training may create it when no step is left
export HPC_LAUNCH_ATTEMPT=$((10#0${attempt_dir//*[!0-9]/}))
export HPC_LAUNCH_END_TIME=${end_time:-${job_time_limit:+$((started + job_time_limit))}} # time limit, in seconds since 1970
say "job $job_id on $place, attempt in $attempt_dir; the training's output is in logs/node-*.log there"

# --- No checkpoints ---
export HPC_LAUNCH_RESUME_FROM='' HPC_LAUNCH_RESUME_NAME='' HPC_LAUNCH_RESUME_STEP=''
saved_checkpoint() { :; }

# --- Private folders ---
private_folder() { # FOLDER: creates it; fails unless it is this user's own and no other user can replace it
    case $1 in /*) ;; *) return 1 ;; esac
    [ -d "$1" ] || (umask 077 && mkdir -p -- "$1" && chmod 700 -- "$1") || return # a default ACL would replace the umask
    if [ ! -O "$1" ] || [ -L "$1" ]; then return 1; fi
    chmod go-w -- "$1" || return # an older one, made with another umask
    in_place "$1"
}

# --- Set up the environment ---
# Evaluated here and not called as a function, in which a `declare` of a sourced file would set a local variable.
job_body=$(declare -f job_environment)
job_body=${job_body#*\{}
umask "$job_umask"
eval "${job_body%\}}"
job_umask=$(umask)
umask go-w
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" # for `import hpc_launch_hooks`
cd "$job_workdir" || die "no folder $(printf %q "$job_workdir")"
node_functions=(on_each_node) # what the script of a node consists of

# --- Host names of the nodes ---
[ -n "${job_spares:-}" ] || mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
fewest=${job_fewest_nodes:-$job_nodes} # of an elastic run, or else all
[ "${#hosts[@]}" -eq "$fewest" ] || { [ "$fewest" -lt "$job_nodes" ] && [ "${#hosts[@]}" -gt "$fewest" ]; } ||
    die "expected $fewest nodes, got ${#hosts[@]}: $SLURM_JOB_NODELIST"

# --- Rendezvous ---
port_answers() { # HOST PORT: somebody listens there, or it does not answer in time
    BASH_ENV='' timeout 5 bash -c 'exec 3<>"/dev/tcp/$1/$2"' _ "$1" "$2" 2>/dev/null
    case $? in 0 | 124) ;; *) return 1 ;; esac
}
choose_port() { # FIRST LAST: sets MASTER_PORT
    # A free port at a random place: the training runs what a server at this port sends, so no other user of the node may
    # know the port in advance. Two jobs on a node differ.
    local size=$(($2 - $1 + 1)) number left
    number=$(od -An -N4 -tu4 /dev/urandom) || number=$RANDOM
    for ((left = size < 50 ? size : 50; left > 0; left--, number++)); do
        MASTER_PORT=$(($1 + number % size))
        ! port_answers 127.0.0.1 "$MASTER_PORT" || continue
        # The address is another node's where `hpc-launch run` starts the script.
        [ "${SLURMD_NODENAME:-}" = "${hosts[0]:-}" ] || return 0
        port_answers "$MASTER_ADDR" "$MASTER_PORT" || return 0
    done
    die "found no free port between $1 and $2 on $HOSTNAME"
}
job_rendezvous
export MASTER_ADDR MASTER_PORT
say "rendezvous at $MASTER_ADDR:$MASTER_PORT"

# --- Node check inside the image: its Python, its modules, its PyTorch ---
check_in_image() { # started by srun in the image, on each node
    local node=$SLURMD_NODENAME run=$HPC_LAUNCH_RUN_DIR
    (python_in_image -I "$run/hooks/agent.pyz" check "$HPC_LAUNCH_ATTEMPT_DIR" "$node" --inside \
        --master="$MASTER_ADDR" --port="$MASTER_PORT" "${job_check[@]}") ||
        printf '{"node":"%s","part": "image","done":true,"results":[{"check":"software","ok":null,"text":"%s"}]}\n' \
            "$node" "no Python in the image, or the check inside ended early"
    exit 0
}
start_inside() { # sets job_check, or starts a step
    local body
    if ! declare -F srun_image >/dev/null; then # each node's own check starts it
        { declare -f python_in_image; echo 'python_in_image "$@"'; } >"$attempt_dir/python-in-image.sh"
        job_check+=(--within="$attempt_dir/python-in-image.sh")
        return
    fi
    body=$(declare -p job_check && declare -f python_in_image check_in_image && echo check_in_image)
    check_step check-image.log "$body" srun_image --overlap --mem=0 & # beside the step that has the nodes' memory
    inside=$!
}

# --- Node check: the training starts only on nodes that passed ---
# Each node reports to the first one over the port of the rendezvous. Without a python3, or if the check itself fails,
# the training starts unchecked.
check_nodes() { # returns 76 if a node is bad
    local agent=$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz python judge body code name inside='' nodes=()
    python=$(command -v python3) && [ -f "$agent" ] || { say 'node check: not possible without python3'; return 0; }
    job_check+=(--writable="$HPC_LAUNCH_RUN_DIR" --shared="$HPC_LAUNCH_RUN_DIR")
    check_node() { # on each node
        local python place=() run=$HPC_LAUNCH_RUN_DIR
        cannot() { printf '{"node":"%s","done":true,"results":[{"check":"start","ok":false,"text":"%s"}]}\n' "$SLURMD_NODENAME" "$1"; }
        [ -r "$run/hooks/agent.pyz" ] || { cannot 'the run folder is not shared with this node' && exit 0; }
        python=$(command -v python3) || { cannot 'no python3' && exit 0; }
        [ "$SLURM_NODEID" -ne 0 ] || place=(--first)
        cd "$job_workdir" 2>/dev/null || cd / # Slurm has chosen /tmp then, where anybody can put a module
        "$python" -I "$run/hooks/agent.pyz" check "$HPC_LAUNCH_ATTEMPT_DIR" "$SLURMD_NODENAME" \
            --workdir="$job_workdir" --master="$MASTER_ADDR" --port="$MASTER_PORT" \
            --writable="${TMPDIR:-/tmp}" "${place[@]}" "${job_check[@]}" ||
            cannot "python3 does not work"
        exit 0 # a failed step would count as a failure of the job
    }
    check_step() { # LOG BODY SRUN...: start a task on each node; a second file says that they have ended
        local started
        trap 'kill -s TERM "$started"' TERM
        [ -z "${job_check_gpus:-}" ] || unset SLURM_TRES_PER_TASK SLURM_GPUS_PER_TASK # else it gets the GPUs of one task
        "${@:3}" --job-name=hpc-launch "${on_hosts[@]}" ${job_check_gpus:+--gres=gpu:"$job_check_gpus" --gpu-bind=none} \
            --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1 --output="$attempt_dir/agent/$1" bash -c "$2" </dev/null &
        started=$!
        wait "$started"
        : >"$attempt_dir/agent/$1.ended"
    }
    end_step() { # PROCESS: what is left of the step hangs
        for _ in {1..100}; do
            kill -0 "$1" 2>/dev/null || return
            sleep 0.1
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
    check_step check.log "$body" srun &
    step=($!)
    while :; do # a trapped signal ends `wait` early
        interrupted=
        wait "$judge"
        code=$?
        [ -n "$interrupted" ] || break
    done
    [ "$code" -ne 76 ] || return 76 # a node may hang: the end of the job ends what is left there
    [ "$code" -eq 0 ] || say "node check: ended with $code, so the training starts unchecked"
    for name in "${step[@]}" $inside; do end_step "$name"; done
    step=()
}
enter check
check_nodes || exit
[ -z "${job_check_only:-}" ] || exit 0
enter environment

# --- Watcher: started before the launcher on each node ---
# It notes which process died first, whether the training hangs, how far its start is and how much memory is left.
# Without a python3 the training runs without it.
watched() { # COMMAND...
    local python agent=$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz from=() input=''
    [ -z "${LOCAL_RANK:-}" ] || from=(--each-process) # started once per process: the first one of the node does it
    # Through this pipe sitecustomize.py tells the watcher of the node how far a process is.
    [ -z "${job_phases:-}" ] || export HPC_LAUNCH_PHASE_PIPE=$HPC_LAUNCH_ATTEMPT_DIR/agent/node-${!job_node_rank}.pipe
    if [ "${LOCAL_RANK:-0}" -eq 0 ] && [ -f "$agent" ] && python=$(command -v python3); then
        if [ -n "${job_phases:-}" ] && mkdir -p "${HPC_LAUNCH_PHASE_PIPE%/*}" && mkfifo -m 600 "$HPC_LAUNCH_PHASE_PIPE"; then
            # Open for both ways, so that neither the watcher nor a writer waits for the other, and nothing is lost.
            { exec {input}<>"$HPC_LAUNCH_PHASE_PIPE"; } && from+=(--phases "$HPC_LAUNCH_PHASE_PIPE")
        fi 2>/dev/null
        [ -n "$input" ] || exec {input}</dev/null
        "$python" -I "$agent" watch "$HPC_LAUNCH_ATTEMPT_DIR" "${!job_node_rank}" "$$" "${from[@]}" "${job_watch[@]}" <&"$input" >/dev/null 2>&1 &
        exec {input}<&-
    fi
    exec "$@"
}
{ printf '#!/bin/bash\n'; declare -p job_node_rank job_watch job_phases 2>/dev/null; declare -f watched; printf 'watched "$@"\n'; } >"$attempt_dir/watch.sh" || die "cannot write $attempt_dir/watch.sh"

# --- Prepare the nodes ---
{ declare -f in_place private_folder on_nodes_first; echo on_nodes_first; } >"$attempt_dir/first.sh" || die "cannot write $attempt_dir/first.sh"
(umask "$job_umask" && srun --job-name=hpc-launch "${on_hosts[@]}" \
    --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1 --kill-on-bad-exit=1 bash "$attempt_dir/first.sh" </dev/null) ||
    die "cannot prepare the nodes"

# --- The script of a node ---
in_workdir() { # Slurm starts it in /tmp on a node that lacks the working folder
    cd "$job_workdir" || die "$(uname -n) has no working folder $job_workdir"
}
{
    declare -p job_workdir job_umask
    declare -f "${node_functions[@]}" in_workdir say die
    # From here on: others who may change what the training writes must not change the logs or the watcher's files.
    echo 'in_workdir && umask "$job_umask" && on_each_node'
} >"$attempt_dir/node.sh" || die "cannot write $attempt_dir/node.sh"

# --- Start the nodes by srun, and wait for their end ---
phase=training
cpus=${SLURM_CPUS_PER_TASK:-${job_cpus_per_task:-}}
[ -z "${HPC_LAUNCH_IN_ALLOCATION:-}" ] || cpus=${job_cpus_per_task:-} # the allocation may have another shape
messages=/proc/$$/fd/2 skip=0 # what srun will write to the job's output, if that is a file
[ ! -f "$messages" ] || skip=$(stat -Lc %s "$messages")
start_nodes &
step=($!)
if declare -F watch_beats >/dev/null; then watch_beats "${step[0]}" & fi
while :; do # a trapped signal ends `wait` early, with a code that is not srun's
    interrupted=
    wait "${step[0]}"
    code=$?
    [ -n "$interrupted" ] || break
done
phase=ended
started_logs=("$attempt_dir"/logs/node-*.log)
if [ "$code" -eq 0 ] && [ ! -e "${started_logs[0]}" ]; then
    say "srun ended with exit code 0, but started nothing"
    code=1
fi

# --- The exit code of the task that failed first ---
if [ "$code" -ne 0 ] && [ -f "$messages" ]; then
    # srun's own code is the highest, including tasks that it killed itself; its messages report each task in order.
    first=$(tail -c "+$((skip + 1))" "$messages" | grep -m 1 -oE '^srun: error: [^ ]+: tasks? [0-9,-]+: .*')
    case $first in
        *': Exited with exit code '[1-9] | *': Exited with exit code '[1-9][0-9] | *': Exited with exit code '[12][0-9][0-9])
            code=${first##* }
            ;;
        *': Killed') code=137 ;;
        *': Aborted'*) code=134 ;;
        *': Segmentation fault'*) code=139 ;;
    esac
elif [ -f "$messages" ] && tail -c "+$((skip + 1))" "$messages" | grep -q '^srun: error: Node failure on '; then
    code=1 # with --no-kill, srun of 22.05 ends with that of the other nodes
fi
say "the step ended with exit code $code"

# --- Exit code ---
rm -f "$attempt_dir"/agent/*.pipe # a copy of the run may not be able to hold a named pipe
[ -z "$ended_by" ] || [ "$code" -ne 0 ] || code=1
exit "$code"
