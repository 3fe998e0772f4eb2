#!/bin/bash
# shellcheck disable=SC1091,SC2016,SC2034,SC2153,SC2329
# zero3 on site booster, started by hand: 2 hosts with 4 + 4 processes, by srun.
# Written by `hpc-launch config launcher --job`. Start it on each host within a few minutes:
#     n1: bash FILE 0
#     n2: bash FILE 1
set -o pipefail
say() { printf '[hpc-launch] %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }
hosts=(n1 n2) slots=(4 4) first_ranks=(0 4)
node=${1:-}
case $node in '' | *[!0-9]* | ?????*) node=2 ;; esac
((10#$node < 2)) || die "usage: bash $0 NODE_RANK: 0 to 1, the place of this host in: ${hosts[*]}"
node=$((10#$node))

# === Folders and variables of the run ===
run_dir=/p/scratch/proj12/runs/zero3-by-hand attempt_dir=$run_dir/attempts/001
(umask go-w && mkdir -p "$attempt_dir"/{logs,agent}) || die "cannot create $attempt_dir"
export HPC_LAUNCH_RUN_DIR=$run_dir HPC_LAUNCH_RUN_NAME=${run_dir##*/} HPC_LAUNCH_ATTEMPT_DIR=$attempt_dir HPC_LAUNCH_ATTEMPT=1
export HPC_LAUNCH_JOB_ID=by-hand HPC_LAUNCH_NODE=$node HPC_LAUNCH_STOP_FILE=$attempt_dir/stop HPC_LAUNCH_DONE_FILE=$attempt_dir/done
export HPC_LAUNCH_RESUME_FROM='' HPC_LAUNCH_RESUME_NAME='' HPC_LAUNCH_RESUME_STEP=''
export HPC_LAUNCH_CODE=/home/alice/project
export MASTER_ADDR=n1i MASTER_PORT=12000

# === Environment ===
job_environment() {
    export HPC_LAUNCH_STRATEGY_CONFIG=$attempt_dir/deepspeed.json # strategy_zero3_srun.yaml:7
    module load Stages/2026 || die 'module load Stages/2026 failed' # booster.yaml:19
    module load CUDA/13 || die 'module load CUDA/13 failed'  # booster.yaml:19
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export HPC_LAUNCH_STRATEGY=zero3                         # strategy_zero3_srun.yaml:7
    export HPC_LAUNCH_PRECISION=fp16                         # strategy_zero3_srun.yaml:12
    export OMP_NUM_THREADS=12                                # cores of a node / processes on it
    export ACCELERATE_USE_DEEPSPEED=true                     # strategy_zero3_srun.yaml:7
    export ACCELERATE_MIXED_PRECISION=fp16                   # strategy_zero3_srun.yaml:12
    export ACCELERATE_DEEPSPEED_CONFIG_FILE="$HPC_LAUNCH_STRATEGY_CONFIG" # strategy_zero3_srun.yaml:7
    export NCCL_SOCKET_IFNAME=ib0                            # booster.yaml:20
    unset NCCL_DEBUG                                         # booster.yaml:20
}
job_strategy_config() { # for all processes; `explain` shows the source of each value
    cat <<END
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "steps_per_print": 10,
  "wall_clock_breakdown": false,
  "zero_allow_untested_optimizer": true,
  "zero_force_ds_cpu_optimizer": false,
  "bf16": {
    "enabled": false,
    "immediate_grad_update": false,
    "check_grad_overflow": true
  },
  "fp16": {
    "enabled": true,
    "auto_cast": false,
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "consecutive_hysteresis": false,
    "min_loss_scale": 1
  },
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "reduce_scatter": true,
    "reduce_bucket_size": 500000000,
    "allgather_partitions": true,
    "allgather_bucket_size": 500000000,
    "round_robin_gradients": false,
    "sub_group_size": 1000000000,
    "stage3_prefetch_bucket_size": 50000000,
    "stage3_param_persistence_threshold": 100000,
    "stage3_max_live_parameters": 1000000000,
    "stage3_max_reuse_distance": 1000000000,
    "stage3_gather_16bit_weights_on_model_save": true,
    "zero_hpz_partition_size": 1,
    "zero_quantized_weights": false,
    "zero_quantized_gradients": false,
    "offload_optimizer": {
      "device": "nvme",
      "nvme_path": "/local/it's \\"fast\\" \$HOME \\\\${HPC_LAUNCH_JOB_ID}",
      "pin_memory": true,
      "buffer_count": 4,
      "pipeline_read": false,
      "pipeline_write": false,
      "fast_init": false,
      "ratio": 1.0
    },
    "offload_param": {
      "device": "nvme",
      "nvme_path": "/local/it's \\"fast\\" \$HOME \\\\${HPC_LAUNCH_JOB_ID}",
      "pin_memory": true,
      "buffer_count": 5,
      "buffer_size": 100000000,
      "max_in_cpu": 1000000000
    }
  }
}
END
}
body=$(declare -f job_environment) # evaluated here: in a function, a `declare` of a sourced file would set a local variable
body=${body#*\{}
eval "${body%\}}"
cd /home/alice/project || die 'no folder /home/alice/project'
job_strategy_config >"$HPC_LAUNCH_STRATEGY_CONFIG.$node"
mv -f "$HPC_LAUNCH_STRATEGY_CONFIG.$node" "$HPC_LAUNCH_STRATEGY_CONFIG" || die "cannot write $HPC_LAUNCH_STRATEGY_CONFIG"

# === Start ===
# A process for each slot, with its rank in the environment. When one fails, the others are ended.
export WORLD_SIZE=8 LOCAL_WORLD_SIZE=${slots[node]} NODE_RANK=$node GROUP_RANK=$node
processes=()
trap 'kill "${processes[@]}" 2>/dev/null' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
for ((slot = 0; slot < slots[node]; slot++)); do
    RANK=$((first_ranks[node] + slot)) LOCAL_RANK=$slot python3 "$HPC_LAUNCH_CODE"/train.py &
    processes+=("$!")
done
for _ in "${processes[@]}"; do
    wait -n || exit
done
