#!/bin/bash
# shellcheck disable=SC1091,SC2016,SC2034,SC2153,SC2329
# train on site any, started by hand: 4 hosts with 8 + 8 + 8 + 8 processes, by deepspeed.
# Written by `hpc-launch config launcher`. Start it on each host within a few minutes:
#     bash FILE [NODE_RANK], here without an argument the one of node 0
set -o pipefail
say() { printf '[hpc-launch] %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }
hosts=(192.168.1.100 node1 node2 node3) slots=(8 8 8 8) first_ranks=(0 8 16 24)
node=${1:-0}
case $node in '' | *[!0-9]* | ?????*) node=4 ;; esac
((10#$node < 4)) || die "usage: bash $0 NODE_RANK: 0 to 3, the place of this host in: ${hosts[*]}"
node=$((10#$node))

# === Folders and variables of the run ===
run_dir=/home/alice/runs/train-by-hand attempt_dir=$run_dir/attempts/001
(umask go-w && mkdir -p "$attempt_dir"/{logs,agent}) || die "cannot create $attempt_dir"
export HPC_LAUNCH_RUN_DIR=$run_dir HPC_LAUNCH_RUN_NAME=${run_dir##*/} HPC_LAUNCH_ATTEMPT_DIR=$attempt_dir HPC_LAUNCH_ATTEMPT=1
export HPC_LAUNCH_JOB_ID=by-hand HPC_LAUNCH_NODE=$node HPC_LAUNCH_STOP_FILE=$attempt_dir/stop HPC_LAUNCH_DONE_FILE=$attempt_dir/done
export HPC_LAUNCH_RESUME_FROM='' HPC_LAUNCH_RESUME_NAME='' HPC_LAUNCH_RESUME_STEP=''
export MASTER_ADDR=192.168.1.100 MASTER_PORT=29500

# === Environment ===
job_environment() {
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=8                                 # cores of a node / processes on it
}
body=$(declare -f job_environment) # evaluated here: in a function, a `declare` of a sourced file would set a local variable
body=${body#*\{}
eval "${body%\}}"
cd /home/alice/job || die 'no folder /home/alice/job'
hostfile=$attempt_dir/hostfile
for at in "${!hosts[@]}"; do
    printf '%s slots=%d\n' "${hosts[at]}" "${slots[at]}"
done >"$hostfile.$node"
mv -f "$hostfile.$node" "$hostfile" || die "cannot write $hostfile"

# === Start ===
exec python3 -m deepspeed.launcher.runner \
    --hostfile="$hostfile" --no_ssh --node_rank="$node" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
    /home/alice/job/src/train.py \
        --config \
        config.yaml \
        --deepspeed \
        config/ds_config.json
