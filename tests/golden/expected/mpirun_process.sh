#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# process on site hydra: 2 nodes x 4 processes, started by srun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=process                                   # mpirun_process.yaml:2
#SBATCH --partition=gpu                                      # hydra.yaml:5
#SBATCH --nodes=2                                            # mpirun_process.yaml:3
#SBATCH --ntasks-per-node=4                                  # one task per process
#SBATCH --cpus-per-task=16                                   # 64 CPUs for 4 tasks
#SBATCH --gpus-per-node=4                                    # hydra.yaml:4
#SBATCH --no-requeue                                         # hpc-launch resubmits; Slurm must not requeue
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=process-%j.out                              # for manual starts; `submit` logs to the run folder

# === Environment ===
job_environment() {
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=16                                # cores of a node / processes on it
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=$(address_of_first_node ib0) || die "ib0 of ${hosts[0]} has no address"
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
# mpirun_process.yaml:5. mpirun starts each process, which takes its rank from the variables set there.
on_each_node() {
    export RANK=$HPC_LAUNCH_RANK LOCAL_RANK=$HPC_LAUNCH_LOCAL_RANK WORLD_SIZE=8
    export LOCAL_WORLD_SIZE=4 GROUP_RANK=$HPC_LAUNCH_NODE NODE_RANK=$HPC_LAUNCH_NODE
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive python3 "$HPC_LAUNCH_CODE"/train.py
}

# === How the nodes are started ===
start_nodes() {
    # Open MPI starts its daemons with srun, which would give each one CPU; a bound daemon binds all that it starts.
    export SLURM_CPU_BIND=none I_MPI_PIN=0 SRUN_CPUS_PER_TASK=64
    unset SLURM_TRES_PER_TASK # must not contradict SRUN_CPUS_PER_TASK (Slurm 23.11 and later)
    exec mpirun -np 8 -ppn 4 \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/process-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2 job_programs=(python3) job_node_rank=HPC_LAUNCH_NODE
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=4 --gpu-vendor=nvidia --python=python3 '--script=${HPC_LAUNCH_CODE}/train.py') job_step=mpirun
job_tasks_per_node=4 job_each_process=yes
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh environment
    programs rendezvous_slurm address_of_interface rendezvous node_check watch bind_ranks hand_over await_notes
    run_noted step_mpi exit
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
