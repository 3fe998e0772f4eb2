#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# ssh_apptainer on site hosts: 3 nodes with 8 + 8 + 4 processes, started by srun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`bash FILE`). Comments name sources.

# === Hosts, which are reached by ssh ===
#HOST gpu1 slots=8
#HOST gpu2 slots=8
#HOST gpu3 slots=4

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
# ssh_apptainer.yaml:4. ssh starts each process, which takes its rank from the variables set there.
on_each_node() {
    export RANK=$HPC_LAUNCH_RANK LOCAL_RANK=$HPC_LAUNCH_LOCAL_RANK WORLD_SIZE=20
    local node=$HPC_LAUNCH_NODE
    export LOCAL_WORLD_SIZE="${job_slots[node]}" GROUP_RANK=$HPC_LAUNCH_NODE NODE_RANK=$HPC_LAUNCH_NODE
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        apptainer exec --no-eval --nv --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /images/torch.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive python3 "$HPC_LAUNCH_CODE"/train.py
}
inside() { # for `hpc-launch shell`, on a node
    exec apptainer exec --no-eval --nv --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /images/torch.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        "$@"
}
python_in_image() { # for the node check: start Python as the training does; what precedes the mark are errors of the image
    exec apptainer exec --no-eval --nv --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /images/torch.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        /bin/sh -c 'echo "hpc-launch: started" >&2; exec "$0" "$@" 2>&1' \
        python3 "$@"
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/ssh_apptainer-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=3 job_node_rank=HPC_LAUNCH_NODE job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30)
job_phases=yes
job_check=(--gpus=8 --gpu-vendor=nvidia --python=python3 '--script=${HPC_LAUNCH_CODE}/train.py' --image)
job_check_gpus=(8 8 4) job_hosts=(gpu1 gpu2 gpu3) job_lease=yes job_addresses=(10.0.0.1 10.0.0.2 10.0.0.3)
job_slots=(8 8 4) job_first_ranks=(0 8 16) job_devices=('' '' '0,1,2,3') job_interfaces=(ens1f0 ens1f0 '')
job_step=ssh job_processes=20
job_image_prefix=APPTAINERENV_
job_image_variables=(
    PYTHONUNBUFFERED PYTHONFAULTHANDLER TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_DUMP_ON_TIMEOUT
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DEBUG_INFO_PIPE_FILE PYTHONNOUSERSITE OMP_NUM_THREADS
)
job_parts=(
    messages job_ssh in_place attempt claim records signals variables fresh environment image_variables rendezvous
    node_check_image hand_over node_check_ssh node_check watch bind_ranks prepare_ssh await_notes run_noted end_together
    each_slot step_ssh exit
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
