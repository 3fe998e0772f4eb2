#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# ibrun-deepspeed on site tacc: 2 nodes x 1 process, started by deepspeed.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=ibrun-deepspeed                           # ibrun_deepspeed.yaml:2
#SBATCH --partition=gh                                       # tacc.yaml:5
#SBATCH --nodes=2                                            # ibrun_deepspeed.yaml:3
#SBATCH --ntasks-per-node=1                                  # one task per node: deepspeed starts the rest
#SBATCH --cpus-per-task=72                                   # tacc.yaml:4
#SBATCH --no-requeue                                         # hpc-launch resubmits; Slurm must not requeue
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=ibrun-deepspeed-%j.out                      # for manual starts; `submit` logs to the run folder

# === Environment ===
job_environment() {
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=72                                # cores of a node / processes on it
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=$(address_of "${hosts[0]}") || die "found no address for ${hosts[0]}"
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
# ibrun_deepspeed.yaml:5. One DeepSpeed launcher per node, told its rank: no ssh between nodes.
on_each_rank() { # started by DeepSpeed's launcher
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive python3 "$HPC_LAUNCH_CODE"/train.py "$@"
}
on_each_node() {
    local node=$HPC_LAUNCH_NODE
    (trap - INT QUIT && exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        python3 -m deepspeed.launcher.runner \
        --hostfile="$HPC_LAUNCH_ATTEMPT_DIR/hostfile" --no_ssh --node_rank="$node" \
        --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
        --no_python "$HPC_LAUNCH_ATTEMPT_DIR/rank.sh") &
    await_ranks "$!" "$((node * 1))" 1
}

# === How the nodes are started ===
start_nodes() {
    exec ibrun -n 2 bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/ibrun-deepspeed-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2 job_processes_per_node=1 job_programs=(python3) job_node_rank=HPC_LAUNCH_NODE
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=1 --gpu-vendor=nvidia --python=python3 '--script=${HPC_LAUNCH_CODE}/train.py') job_step=ibrun
job_tasks_per_node=1 job_each_process=''
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh environment
    programs rendezvous_slurm address_by_fqdn rendezvous hand_over node_check_ibrun node_check watch bind_ranks hostfile
    await_child deepspeed await_notes run_noted step_mpi exit
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
