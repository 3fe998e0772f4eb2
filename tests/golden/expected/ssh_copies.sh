#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# ssh_copies on site apart: 2 nodes x 8 processes, started by torchrun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`bash FILE`). Comments name sources.

# === Hosts, which are reached by ssh ===
#HOST gpu1 slots=8
#HOST gpu2 slots=8

# === Environment ===
job_environment() {
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=8                                 # cores of a node / processes on it
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=10.0.0.1
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
on_nodes_first() { # once, before anything else is started there
    fail() { printf '[hpc-launch] %s: %s\n' "$HOSTNAME" "$*" >&2; exit 1; }
    mkdir -p -- /local/tmp || fail 'mkdir -p -- /local/tmp failed' # hosts.yaml:20
}
# ssh_copies.yaml:4. Static rendezvous: ranks follow the order of the nodes.
on_each_node() {
    local node=$HPC_LAUNCH_NODE logs=$HPC_LAUNCH_ATTEMPT_DIR/logs
    mkdir -m 700 "$logs/ranks-of-node-$node" && export TORCHELASTIC_ERROR_FILE=$logs/ranks-of-node-$node/launcher.json
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        python3 -m torch.distributed.run \
        --nnodes=2 --nproc-per-node=8 --node-rank="$node" \
        --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        --no-python bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive python3 "$HPC_LAUNCH_CODE"/train.py
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/ssh_copies-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2 job_programs=(python3) job_time_limit=3600 job_node_rank=HPC_LAUNCH_NODE
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=8 --gpu-vendor=nvidia '--writable=${HPC_LAUNCH_RUN_DIR}/it'\''s' --python=python3 '--script=${HPC_LAUNCH_CODE}/train.py')
job_hosts=(gpu1 gpu2) job_lease=yes job_addresses=(10.0.0.1 10.0.0.2) job_interfaces=(ens1f0 ens1f0)
job_copies=(--copy-workdir=104857600 '--exclude=data *' '--exclude=*.bin' --) job_own_checkpoints=yes job_step=ssh
job_checkpoints() { checkpoints="$HPC_LAUNCH_RUN_DIR"'/it'\''s'; }
job_checkpoint=('step-(\d+)')
job_parts=(
    messages job_ssh in_place attempt claim records signals variables resume environment programs rendezvous hand_over
    copies node_check_ssh node_check watch bind_ranks prepare_ssh await_notes run_noted step_ssh exit
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
