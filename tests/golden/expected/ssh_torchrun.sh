#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# ssh_torchrun on site hosts: 3 nodes with 8 + 8 + 4 processes, started by torchrun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`bash FILE`). Comments name sources.

# === Hosts, which are reached by ssh ===
#HOST gpu1 slots=8
#HOST gpu2 slots=8
#HOST gpu3 slots=4

# === Environment ===
job_environment() {
    # shellcheck source=/dev/null
    . /home/alice/venvs/train/bin/activate || die 'no virtual environment in /home/alice/venvs/train' # ssh_torchrun.yaml:6
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
# ssh_torchrun.yaml:4. c10d rendezvous: it can restart the processes. The first node hosts the store, and each
# is told its own address: torchrun's guess fails on hosts with several names.
on_each_node() {
    local node=$HPC_LAUNCH_NODE logs=$HPC_LAUNCH_ATTEMPT_DIR/logs
    mkdir -m 700 "$logs/ranks-of-node-$node" && export TORCHELASTIC_ERROR_FILE=$logs/ranks-of-node-$node/launcher.json
    local is_host=0 address endpoint=$MASTER_ADDR:$MASTER_PORT
    address=${job_addresses[node]}
    [ "$node" -ne 0 ] || is_host=1
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # else a restart finds the keys of the last start (pytorch#135712)
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/guard.sh" \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        python3 -m torch.distributed.run \
        --nnodes=3 --nproc-per-node="${job_slots[node]}" --max-restarts=0 \
        --rdzv-backend=c10d --rdzv-endpoint="$endpoint" --rdzv-id="$HPC_LAUNCH_JOB_ID" \
        --rdzv-conf="is_host=$is_host,read_timeout=300" --local-addr="$address" \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        --no-python bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive python3 "$HPC_LAUNCH_CODE"/train.py
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/ssh_torchrun-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=3 job_programs=(python3) job_time_limit=3600 job_warn='file' job_node_rank=HPC_LAUNCH_NODE
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=8 --gpu-vendor=nvidia --python=python3 '--script=${HPC_LAUNCH_CODE}/train.py')
job_check_gpus=(8 8 4) job_hosts=(gpu1 gpu2 gpu3) job_lease=yes job_addresses=(10.0.0.1 10.0.0.2 10.0.0.3)
job_slots=(8 8 4) job_first_ranks=(0 8 16) job_devices=('' '' '0,1,2,3') job_interfaces=(ens1f0 ens1f0 '')
job_step=ssh
job_secrets=(WANDB_API_KEY)
job_parts=(
    messages job_ssh in_place attempt claim records signals variables fresh environment programs secrets rendezvous
    hand_over node_check_ssh node_check guard watch bind_ranks prepare_ssh await_notes run_noted step_ssh exit
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
