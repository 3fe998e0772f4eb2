#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# command on site booster: 1 node x 2 processes, started by torchrun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=command                                   # command.yaml:2
#SBATCH --partition=shared                                   # booster.yaml:12
#SBATCH --account=proj12                                     # command.yaml:3
#SBATCH --nodes=1                                            # default
#SBATCH --ntasks-per-node=1                                  # one task per node: torchrun starts the rest
#SBATCH --cpus-per-task=16                                   # 2 of 8 GPUs' share of 64 CPUs
#SBATCH --gres=gpu:h100:2                                    # command.yaml:5
#SBATCH --requeue                                            # booster.yaml:3
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=command-%j.out                              # for manual starts; `submit` logs to the run folder

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
    export OMP_NUM_THREADS=8                                 # cores of a node / processes on it
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
    export NCCL_SOCKET_IFNAME=ib0                            # booster.yaml:20
    unset NCCL_DEBUG                                         # booster.yaml:20
    export TEXT=$'line 1\015\nline 2'                        # command.yaml:9
    export EMPTY=''                                          # command.yaml:9
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}i
    choose_port 12000 12999 # sets MASTER_PORT
}

# === What runs on each node ===
# command.yaml:6. Static rendezvous: ranks follow the order of the nodes.
on_each_node() {
    local node=$SLURM_NODEID logs=$HPC_LAUNCH_ATTEMPT_DIR/logs
    mkdir -m 700 "$logs/ranks-of-node-$node" && export TORCHELASTIC_ERROR_FILE=$logs/ranks-of-node-$node/launcher.json
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        python3 -m torch.distributed.run \
        --nnodes=1 --nproc-per-node=2 --node-rank="$node" \
        --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        --numa-binding=node \
        --no-python bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive bin/train --config 'a b.json' '$HOME' \
            'it'\''s' \
            '$(id)' \
            '`id`' \
            $'a\nb\tc' \
            $'\342\200\256evil' \
            '' \
            -x \
            'ünï' \
            '${x}' \
            '!!' \
            $'\\'
}

# === How the nodes are started ===
start_nodes() {
    # When one node fails the others end too; when one ends well the others, which may still save, go on.
    exec srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --mpi=none \
        --output="$attempt_dir/logs/node-%n.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/p/scratch/proj12/runs/command-by-hand # run folder if started by hand
job_workdir=/home/alice/project
job_nodes=1 job_cpus_per_task=16 job_node_rank=SLURM_NODEID
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=2 --interfaces=ib0 --python=python3)
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh environment
    rendezvous_slurm rendezvous node_check watch bind_ranks node step_srun end_srun exit
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
