#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# local-none on site local: 1 node x 2 processes, started by none.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`bash FILE`). Comments name sources.

# === Environment ===
job_environment() {
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=8                                 # cores of a node / processes on it
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=127.0.0.1
    hosts=(localhost) # all of them this machine
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
# local_none.yaml:4. The program is started once, on the first node, and starts its processes itself: by srun,
# whose defaults are this job's, or from the host file.
on_first_node() {
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        deepspeed --num_gpus 2 train.py
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/local-none-by-hand # run folder if started by hand
job_workdir=/home/alice/project
job_nodes=1 job_processes_per_node=2 job_node_rank=HPC_LAUNCH_NODE
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30 --program) job_phases=
job_parts=(
    messages job_local in_place attempt claim records signals variables fresh environment rendezvous watch hostfile
    step_once exit
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
