#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# stage-python on site local: 2 nodes x 2 processes, started by torchrun.
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
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=127.0.0.1
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
# default. Static rendezvous: ranks follow the order of the nodes.
on_each_node() {
    local node=$HPC_LAUNCH_NODE logs=$HPC_LAUNCH_ATTEMPT_DIR/logs
    mkdir -m 700 "$logs/ranks-of-node-$node" && export TORCHELASTIC_ERROR_FILE=$logs/ranks-of-node-$node/launcher.json
    export CUDA_VISIBLE_DEVICES=$((node * 2 + 0)),$((node * 2 + 1))
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        "$HPC_LAUNCH_PYTHON" -m torch.distributed.run \
        --nnodes=2 --nproc-per-node=2 --node-rank="$node" \
        --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        "$HPC_LAUNCH_CODE"/train.py
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/stage-python-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2 job_node_rank=HPC_LAUNCH_NODE job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30)
job_phases=yes
job_stage=node                                               # stage_python.yaml:5
job_stage_folders() { folders=(/dev/shm); }
export HPC_LAUNCH_PYTHON=/home/alice/venv/bin/python # on each node, its copy
job_parts=(
    messages job_local in_place attempt claim records signals variables fresh environment rendezvous watch stage_local
    stage stage_software node end_together step_local unstage exit
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
