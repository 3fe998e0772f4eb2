#!/bin/bash
# shellcheck disable=SC1091,SC2016,SC2034,SC2153,SC2329
# ssh_apptainer on site hosts, started by hand: 3 hosts with 8 + 8 + 4 processes, by srun.
# Written by `hpc-launch config launcher --job`. Start it on each host within a few minutes:
#     gpu1: bash FILE 0
#     gpu2: bash FILE 1
#     gpu3: bash FILE 2
set -o pipefail
say() { printf '[hpc-launch] %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }
hosts=(gpu1 gpu2 gpu3) slots=(8 8 4) first_ranks=(0 8 16)
node=${1:-}
case $node in '' | *[!0-9]* | ?????*) node=3 ;; esac
((10#$node < 3)) || die "usage: bash $0 NODE_RANK: 0 to 2, the place of this host in: ${hosts[*]}"
node=$((10#$node))

# === Folders and variables of the run ===
run_dir=/home/alice/runs/ssh_apptainer-by-hand attempt_dir=$run_dir/attempts/001
(umask go-w && mkdir -p "$attempt_dir"/{logs,agent}) || die "cannot create $attempt_dir"
export HPC_LAUNCH_RUN_DIR=$run_dir HPC_LAUNCH_RUN_NAME=${run_dir##*/} HPC_LAUNCH_ATTEMPT_DIR=$attempt_dir HPC_LAUNCH_ATTEMPT=1
export HPC_LAUNCH_JOB_ID=by-hand HPC_LAUNCH_NODE=$node HPC_LAUNCH_STOP_FILE=$attempt_dir/stop HPC_LAUNCH_DONE_FILE=$attempt_dir/done
export HPC_LAUNCH_RESUME_FROM='' HPC_LAUNCH_RESUME_NAME='' HPC_LAUNCH_RESUME_STEP=''
export HPC_LAUNCH_CODE=/home/alice/project
export MASTER_ADDR=10.0.0.1 MASTER_PORT=29500
interfaces=(ens1f0 ens1f0 '')
[ -z "${interfaces[node]}" ] || export NCCL_SOCKET_IFNAME=${interfaces[node]} GLOO_SOCKET_IFNAME=${interfaces[node]}
devices=('' '' '0,1,2,3')
[ -z "${devices[node]}" ] || export CUDA_VISIBLE_DEVICES=${devices[node]}

# === Environment ===
job_environment() {
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export PYTHONNOUSERSITE=1                                # packages in the home are not the image's
    export OMP_NUM_THREADS=8                                 # cores of a node / processes on it
}
body=$(declare -f job_environment) # evaluated here: in a function, a `declare` of a sourced file would set a local variable
body=${body#*\{}
eval "${body%\}}"
cd /home/alice/project || die 'no folder /home/alice/project'
mkdir -p -- /local/tmp || die 'mkdir -p -- /local/tmp failed' # hosts.yaml:20
for name in PYTHONUNBUFFERED PYTHONFAULTHANDLER TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DEBUG_INFO_PIPE_FILE PYTHONNOUSERSITE OMP_NUM_THREADS; do
    [ -z "${!name+set}" ] || export APPTAINERENV_"$name=${!name}"
done

# === Start ===
# A process for each slot, with its rank in the environment. When one fails, the others are ended.
export WORLD_SIZE=20 LOCAL_WORLD_SIZE=${slots[node]} NODE_RANK=$node GROUP_RANK=$node
processes=()
trap 'kill "${processes[@]}" 2>/dev/null' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
for ((slot = 0; slot < slots[node]; slot++)); do
    RANK=$((first_ranks[node] + slot)) LOCAL_RANK=$slot apptainer exec --no-eval --nv --no-home --pwd /home/alice/project --bind "$HPC_LAUNCH_RUN_DIR" --bind /home/alice/project /images/torch.sif python3 "$HPC_LAUNCH_CODE"/train.py &
    processes+=("$!")
done
for _ in "${processes[@]}"; do
    wait -n || exit
done
