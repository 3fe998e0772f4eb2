#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# none on site booster: 2 nodes x 4 processes, started by none.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=none                                      # none.yaml:1
#SBATCH --partition=booster                                  # booster.yaml:11
#SBATCH --qos=normal                                         # booster.yaml:11
#SBATCH --account=proj7                                      # none.yaml:3
#SBATCH --nodes=2                                            # none.yaml:4
#SBATCH --ntasks-per-node=4                                  # one task per process
#SBATCH --cpus-per-task=24                                   # 96 CPUs for 4 tasks
#SBATCH --gres=gpu:4                                         # booster.yaml:6
#SBATCH --mem=0                                              # booster.yaml:11
#SBATCH --exclusive                                          # booster.yaml:11
#SBATCH --time=02:00:00                                      # booster.yaml:11
#SBATCH --requeue                                            # booster.yaml:3
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=none-%j.out                                 # for manual starts; `submit` logs to the run folder
#SBATCH --licenses=scratch                                   # booster.yaml:11

# === Environment ===
job_environment() {
    module load Stages/2026 || die 'module load Stages/2026 failed' # booster.yaml:19
    module load CUDA/13 || die 'module load CUDA/13 failed'  # booster.yaml:19
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=12                                # cores of a node / processes on it
    export NCCL_SOCKET_IFNAME=ib0                            # booster.yaml:20
    unset NCCL_DEBUG                                         # booster.yaml:20
    export DLTS_HOSTFILE="$HPC_LAUNCH_ATTEMPT_DIR"/hostfile  # none.yaml:8
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}i
    choose_port 12000 12999 # sets MASTER_PORT
}

# === What runs on each node ===
# none.yaml:5. The program is started once, on the first node, and starts its processes itself: by srun,
# whose defaults are this job's, or from the host file.
on_first_node() {
    export SLURM_KILL_BAD_EXIT=1 SLURM_WAIT=0 # for its srun: when one process fails, end the others at once; let one that still saves end
    export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-24} # Slurm 22.05 and 23.02 read nothing else
    exec python3 deepy.py train.py \
        configs/2-7B.yml \
        slurm.yml
}

# === Values for the part below ===
job_by_hand=/p/scratch/proj7/runs/none-by-hand # run folder if started by hand
job_workdir=/home/alice/project
job_nodes=2 job_processes_per_node=4 job_time_limit=7200
job_check=(--gpus=4 --gpu-vendor=nvidia --gpu-model=a100 --memory-mib=512000 --interfaces=ib0 --python=python3)
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh environment
    rendezvous_slurm rendezvous node_check hostfile step_once end_successor exit
)

# ===== Below: the same in every job =====
# hooks/runtime.sh of the run folder runs the parts named above. It must be the file that this script was made for.
job_runtime=${1%/attempts/*}/hooks/runtime.sh
[ -f "$job_runtime" ] || job_runtime=$(dirname -- "$0")/runtime.sh # started by hand
[ -f "$job_runtime" ] || job_runtime=${SLURM_SUBMIT_DIR:-.}/runtime.sh
if [ "$(sha256sum 2>/dev/null <"$job_runtime")" != "0000000000000000000000000000000000000000000000000000000000000000  -" ]; then
    echo "[hpc-launch] $job_runtime is missing, or not the file that this script was made for. \`hpc-launch render -o FILE\`" \
        "writes both; \`hpc-launch render --standalone\` writes a script that needs no other file." >&2
    exit 1
fi
# shellcheck source=/dev/null
. "$job_runtime"
