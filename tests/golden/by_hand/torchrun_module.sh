#!/bin/bash
# shellcheck disable=SC1091,SC2016,SC2034,SC2153,SC2329
# torchrun_module on site gpuless, started by hand: 1 host with 1 process, by torchrun.
# Written by `hpc-launch config launcher --job`. Start it on each host within a few minutes:
#     n1: bash FILE 0
set -o pipefail
say() { printf '[hpc-launch] %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }
hosts=(n1) slots=(1) first_ranks=(0)
node=${1:-}
case $node in '' | *[!0-9]* | ?????*) node=1 ;; esac
((10#$node < 1)) || die "usage: bash $0 NODE_RANK: 0, the place of this host in: ${hosts[*]}"
node=$((10#$node))

# === Folders and variables of the run ===
run_dir=/home/alice/runs/torchrun_module-by-hand attempt_dir=$run_dir/attempts/001
(umask go-w && mkdir -p "$attempt_dir"/{logs,agent}) || die "cannot create $attempt_dir"
export HPC_LAUNCH_RUN_DIR=$run_dir HPC_LAUNCH_RUN_NAME=${run_dir##*/} HPC_LAUNCH_ATTEMPT_DIR=$attempt_dir HPC_LAUNCH_ATTEMPT=1
export HPC_LAUNCH_JOB_ID=by-hand HPC_LAUNCH_NODE=$node HPC_LAUNCH_STOP_FILE=$attempt_dir/stop HPC_LAUNCH_DONE_FILE=$attempt_dir/done
export HPC_LAUNCH_RESUME_FROM='' HPC_LAUNCH_RESUME_NAME='' HPC_LAUNCH_RESUME_STEP=''
export MASTER_ADDR=n1 MASTER_PORT=29500

# === Environment ===
job_environment() {
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export OMP_NUM_THREADS=32                                # cores of a node / processes on it
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
}
body=$(declare -f job_environment) # evaluated here: in a function, a `declare` of a sourced file would set a local variable
body=${body#*\{}
eval "${body%\}}"
cd /home/alice/project || die 'no folder /home/alice/project'

# === Start ===
exec python3 -m torch.distributed.run \
    --nnodes=1 --nproc-per-node="${slots[node]}" --node-rank="$node" \
    --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
    --module \
    pkg.train \
        --x 1
