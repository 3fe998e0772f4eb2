#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# tiny on site narval: 2 nodes x 4 processes, started by torchrun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=tiny                                      # job.yaml:2
#SBATCH --account=def-abc                                    # user.yaml:22
#SBATCH --nodes=2                                            # job.yaml:3
#SBATCH --ntasks-per-node=1                                  # one task per node: torchrun starts the rest
#SBATCH --cpus-per-task=48                                   # narval.yaml:17
#SBATCH --gpus-per-node=a100:4                               # narval.yaml:20
#SBATCH --mem=510000M                                        # narval.yaml:18
#SBATCH --time=00:15:00                                      # job.yaml:4
#SBATCH --no-requeue                                         # hpc-launch resubmits; Slurm must not requeue
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=tiny-%j.out                                 # for manual starts; `submit` logs to the run folder

# === Environment ===
job_environment() {
    module load apptainer || die 'module load apptainer failed' # alliance.yaml:25
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export PYTHONNOUSERSITE=1                                # packages in the home are not the image's
    export OMP_NUM_THREADS=12                                # cores of a node / processes on it
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
    export HF_HUB_OFFLINE=1                                  # no internet on compute nodes: do not try to download
    export TRANSFORMERS_OFFLINE=1                            # no internet on compute nodes: the same for transformers before 5
    export HF_DATASETS_OFFLINE=1                             # no internet on compute nodes: use only local data sets
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
# default. Static rendezvous: ranks follow the order of the nodes.
on_each_node() {
    local node=$SLURM_NODEID logs=$HPC_LAUNCH_ATTEMPT_DIR/logs
    mkdir -m 700 "$logs/ranks-of-node-$node" && export TORCHELASTIC_ERROR_FILE=$logs/ranks-of-node-$node/launcher.json
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        apptainer exec --no-eval --nv --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /project/def-abc/pytorch.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        python3 -m torch.distributed.run \
        --nnodes=2 --nproc-per-node=4 --node-rank="$node" \
        --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        --no-python bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive python3 "$HPC_LAUNCH_CODE"/train.py \
            --lr 1e-3
}
inside() { # for `hpc-launch shell`, on a node
    exec apptainer exec --no-eval --nv --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /project/def-abc/pytorch.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        "$@"
}
python_in_image() { # for the node check: start Python as the training does; what precedes the mark are errors of the image
    exec apptainer exec --no-eval --nv --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /project/def-abc/pytorch.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        /bin/sh -c 'echo "hpc-launch: started" >&2; exec "$0" "$@" 2>&1' \
        python3 "$@"
}

# === How the nodes are started ===
start_nodes() {
    # When one node fails the others end too; when one ends well the others, which may still save, go on.
    exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --output="$attempt_dir/logs/node-%n.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/tiny-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2 job_cpus_per_task=48 job_time_limit=900 job_node_rank=SLURM_NODEID
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=4 --gpu-vendor=nvidia --gpu-model=a100 --memory-mib=510000 --python=python3 '--script=${HPC_LAUNCH_CODE}/train.py' --image)
job_image_prefix=APPTAINERENV_
job_image_variables=(
    PYTHONUNBUFFERED PYTHONFAULTHANDLER TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_DUMP_ON_TIMEOUT
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DEBUG_INFO_PIPE_FILE PYTHONNOUSERSITE OMP_NUM_THREADS
    TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE HF_HUB_OFFLINE TRANSFORMERS_OFFLINE HF_DATASETS_OFFLINE
)
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh environment
    image_variables rendezvous_slurm rendezvous node_check_image node_check watch bind_ranks node step_srun end_srun
    exit
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
