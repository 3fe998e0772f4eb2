#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# switches on site switched: 4 nodes x 4 processes, started by srun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=switches                                  # switches.yaml:2
#SBATCH --partition=gpu                                      # switched.yaml:7
#SBATCH --nodes=4                                            # switches.yaml:3
#SBATCH --ntasks-per-node=4                                  # one task per process
#SBATCH --cpus-per-task=16                                   # 64 CPUs for 4 tasks
#SBATCH --gpus-per-node=4                                    # switched.yaml:5
#SBATCH --mem=256G                                           # switched.yaml:5
#SBATCH --no-requeue                                         # hpc-launch resubmits; Slurm must not requeue
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=switches-%j.out                             # for manual starts; `submit` logs to the run folder

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
    MASTER_ADDR=${hosts[0]}
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
# switches.yaml:4. srun starts each process, which takes its rank from the variables set there.
on_each_node() {
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    export LOCAL_WORLD_SIZE=4 GROUP_RANK=$HPC_LAUNCH_NODE
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive true
}

# === How the nodes are started ===
start_nodes() {
    # When one process fails the others end too; when one ends well the others, which may still save, go on.
    local order=(--nodes=4) log=node-%n.rank-%t
    if [ -f "$attempt_dir/order" ]; then # Slurm 26.05 refuses it together with --nodes
        export SLURM_HOSTFILE=$attempt_dir/order
        order=(--distribution=arbitrary) log=step
    fi
    exec srun "${order[@]}" --ntasks=16 --ntasks-per-node=4 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --cpu-bind=none \
        --output="$attempt_dir/logs/$log.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/switches-by-hand # run folder if started by hand
job_workdir=/home/alice/project
job_nodes=4 job_programs=(true) job_cpus_per_task=16 job_node_rank=HPC_LAUNCH_NODE
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes job_ordered_tasks=4
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh environment
    programs rendezvous_slurm node_order rendezvous watch bind_ranks node step_srun end_srun exit
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
