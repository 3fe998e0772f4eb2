#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# local_deepspeed on site local: 2 nodes x 1 process, started by deepspeed.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`bash FILE`). Comments name sources.

# === Environment ===
job_environment() {
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=4                                 # cores of a node / processes on it
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=127.0.0.1
    hosts=(node0 node1) # all of them this machine
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
# local_deepspeed.yaml:5. One DeepSpeed launcher per node, told its rank: no ssh between nodes.
on_each_rank() { # started by DeepSpeed's launcher
    exec python3 "$HPC_LAUNCH_CODE"/train.py "$@"
}
on_each_node() {
    local node=$HPC_LAUNCH_NODE
    export CUDA_VISIBLE_DEVICES=$((node * 1 + 0))
    bash "$HPC_LAUNCH_ATTEMPT_DIR/guard.sh" \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        python3 -m deepspeed.launcher.runner \
        --hostfile="$HPC_LAUNCH_ATTEMPT_DIR/hostfile" --no_ssh --node_rank="$node" \
        --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
        --no_python "$HPC_LAUNCH_ATTEMPT_DIR/rank.sh" &
    await_ranks "$!" "$((node * 1))" 1
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/local_deepspeed-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2 job_processes_per_node=1 job_time_limit=600 job_warn='file' job_node_rank=HPC_LAUNCH_NODE
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes

# ===== Below: the same in every job. Static shell, from slurm_templates/parts/ =====

# --- Messages ---
set -o pipefail
job_umask=$(umask) # of the training; only the user may change what this script writes and then runs
umask go-w
now() { printf '%(%s)T' -1; }
say() { printf '[hpc-launch %(%F %T)T] %s\n' -1 "$*"; }
die() { say "$*" >&2; exit 1; }

# --- The job on this machine ---
job_id=${HPC_LAUNCH_JOB_ID:-by-hand-$$}
nodes=$(uname -n)
place="this machine"
restart=0
first_step=''
end_time=''
call_after() { :; } # the supervisor does it

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

# --- Host file ---
for host in "${hosts[@]}"; do
    printf '%s slots=%d\n' "$host" "$job_processes_per_node"
done >"$attempt_dir/hostfile" || die "cannot write $attempt_dir/hostfile"

# --- Wait on a node for the launcher ---
await_child() { # PROCESS: sets `code`. Slurm may send TERM only to the first process of a task, which is this shell
    child=$1
    trap 'told=1; kill -s TERM "$child" 2>/dev/null' TERM
    while :; do # a trapped signal ends `wait` early
        told=
        wait "$child"
        code=$?
        [ -n "$told" ] || break
    done
}
await_and_note() { # PROCESS FILE: srun's exit code is useless after a lost node, so each other node notes its own
    await_child "$1"
    umask go-w
    printf '%d\n' "$code" >"$2"
    exit "$code"
}
node_functions+=(await_child await_and_note)

# --- Exit codes of DeepSpeed's processes ---
# DeepSpeed's launcher ends with 0 when a signal kills it, so each rank notes how it ended.
run_rank() {
    local note=$HPC_LAUNCH_ATTEMPT_DIR/logs/rank-${RANK:?}.exit code
    on_each_rank "$@" 2>&1 | sed -u "s/^/[rank$RANK]: /"
    code=${PIPESTATUS[0]}
    umask go-w
    printf '%d\n' "$code" >"$note"
    exit "$code"
}
await_ranks() { # PROCESS FIRST_RANK PROCESSES
    local rank
    await_child "$1"
    for ((rank = $2; rank < $2 + $3; rank++)); do
        [ "$code" -eq 0 ] || break # not in (( )), which would evaluate what the file holds
        code=1
        [ ! -f "$HPC_LAUNCH_ATTEMPT_DIR/logs/rank-$rank.exit" ] || read -r code <"$HPC_LAUNCH_ATTEMPT_DIR/logs/rank-$rank.exit"
        case $code in '' | *[!0-9]*) code=1 ;; esac
    done
    [ "$code" -eq 0 ] || : >"$HPC_LAUNCH_ATTEMPT_DIR/ending"
    exit "$code"
}
node_functions+=(await_ranks)
{ printf '#!/bin/bash\n'; declare -f on_each_rank run_rank; printf 'run_rank "$@"\n'; } >"$attempt_dir/rank.sh"
chmod +x "$attempt_dir/rank.sh" || die "cannot write $attempt_dir/rank.sh"

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

# --- Wait for processes: when one fails the others are ended too, as with srun ---
end_together() { # NAME PAUSE: the processes of `step`, by number; sets `code`, that of the first failure
    local number its
    code=0
    while [ "${#step[@]}" -gt 0 ]; do
        sleep "$2"
        for number in "${!step[@]}"; do
            kill -0 "${step[number]}" 2>/dev/null && continue
            wait "${step[number]}"
            its=$?
            unset "step[number]"
            if [ "$its" -ne 0 ] && [ "$code" -eq 0 ]; then
                code=$its
                say "$1 $number ended with exit code $code"
                : >"$HPC_LAUNCH_ATTEMPT_DIR/ending"
                kill -s TERM "${step[@]}" 2>/dev/null
            fi
        done
    done
}

# --- Start the nodes on this machine, and wait for their end ---
phase=training
for ((node = 0; node < job_nodes; node++)); do
    HPC_LAUNCH_NODE=$node bash "$attempt_dir/node.sh" >>"$attempt_dir/logs/node-$node.log" 2>&1 </dev/null &
    step+=($!)
done
end_together node 0.2
phase=ended
say "the step ended with exit code $code"

# --- Exit code ---
rm -f "$attempt_dir"/agent/*.pipe # a copy of the run may not be able to hold a named pipe
[ -z "$ended_by" ] || [ "$code" -ne 0 ] || code=1
exit "$code"
