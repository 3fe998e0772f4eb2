#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# experts on site booster: 2 nodes x 4 processes, started by srun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=experts                                   # strategy_megatron_srun.yaml:2
#SBATCH --partition=booster                                  # booster.yaml:11
#SBATCH --qos=normal                                         # booster.yaml:11
#SBATCH --account=proj12                                     # strategy_megatron_srun.yaml:3
#SBATCH --nodes=2                                            # strategy_megatron_srun.yaml:4
#SBATCH --ntasks-per-node=4                                  # one task per process
#SBATCH --cpus-per-task=24                                   # 96 CPUs for 4 tasks
#SBATCH --gres=gpu:4                                         # booster.yaml:6
#SBATCH --mem=0                                              # booster.yaml:11
#SBATCH --exclusive                                          # booster.yaml:11
#SBATCH --time=02:00:00                                      # booster.yaml:11
#SBATCH --requeue                                            # booster.yaml:3
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=experts-%j.out                              # for manual starts; `submit` logs to the run folder
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
    export HPC_LAUNCH_STRATEGY=megatron                      # strategy_megatron_srun.yaml:6
    export OMP_NUM_THREADS=12                                # cores of a node / processes on it
    export NCCL_SOCKET_IFNAME=ib0                            # booster.yaml:20
    unset NCCL_DEBUG                                         # booster.yaml:20
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}i
    choose_port 12000 12999 # sets MASTER_PORT
}

# === What runs on each node ===
# strategy_megatron_srun.yaml:5. srun starts each process, which takes its rank from the variables set there.
on_each_node() {
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    export LOCAL_WORLD_SIZE=4 GROUP_RANK=$SLURM_NODEID
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive python3 "$HPC_LAUNCH_CODE"/pretrain_gpt.py \
        --tensor-model-parallel-size 1 \
        --pipeline-model-parallel-size 2 \
        --context-parallel-size 1 \
        --expert-model-parallel-size 4 \
        --expert-tensor-parallel-size 1 \
        --num-virtual-stages-per-pipeline-rank 2 \
        --micro-batch-size 1 \
        --global-batch-size 32 \
        --overlap-grad-reduce \
        --num-experts \
        8 \
        --num-layers=16
}

# === How the nodes are started ===
start_nodes() {
    # When one process fails the others end too; when one ends well the others, which may still save, go on.
    exec srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --mpi=none \
        --cpu-bind=none \
        --output="$attempt_dir/logs/node-%n.rank-%t.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/p/scratch/proj12/runs/experts-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2 job_programs=(python3) job_cpus_per_task=24 job_time_limit=7200 job_node_rank=SLURM_NODEID
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=4 --gpu-vendor=nvidia --gpu-model=a100 --memory-mib=512000 --interfaces=ib0 --python=python3 '--script=${HPC_LAUNCH_CODE}/pretrain_gpt.py')
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh environment
    programs rendezvous_slurm rendezvous node_check watch bind_ranks node step_srun end_srun end_successor exit
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
