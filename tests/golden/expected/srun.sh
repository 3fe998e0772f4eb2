#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# srun on site booster: 2 nodes x 1 process, started by srun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=srun                                      # srun.yaml:2
#SBATCH --partition=gh                                       # booster.yaml:13
#SBATCH --account=proj12                                     # srun.yaml:3
#SBATCH --nodes=2                                            # srun.yaml:5
#SBATCH --ntasks-per-node=1                                  # one task per process
#SBATCH --cpus-per-task=72                                   # booster.yaml:8
#SBATCH --mem=100G                                           # srun.yaml:9
#SBATCH --time=1-12:00:00                                    # srun.yaml:10
#SBATCH --requeue                                            # booster.yaml:3
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=srun-%j.out                                 # for manual starts; `submit` logs to the run folder
#SBATCH --mail-type=END                                      # srun.yaml:11
#SBATCH --comment="two words"                                # srun.yaml:11

# === Environment ===
job_environment() {
    # shellcheck source=/dev/null
    . /etc/profile.d/site.sh || die 'cannot source /etc/profile.d/site.sh' # srun.yaml:8
    module load Stages/2026 || die 'module load Stages/2026 failed' # booster.yaml:19
    module load CUDA/13 || die 'module load CUDA/13 failed'  # booster.yaml:19
    eval "$(conda shell.bash hook)" || die "conda not found" # srun.yaml:8
    conda activate torch || die 'conda activate torch failed' # srun.yaml:8
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=72                                # cores of a node / processes on it
    export NCCL_SOCKET_IFNAME=ib0                            # booster.yaml:20
    unset NCCL_DEBUG                                         # booster.yaml:20
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}i
    choose_port 12000 12999 # sets MASTER_PORT
}

# === What runs on each node ===
# srun.yaml:6. srun starts each process, which takes its rank from the variables set there.
on_each_node() {
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    export LOCAL_WORLD_SIZE=1 GROUP_RANK=$SLURM_NODEID
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive /opt/python/bin/python3 -m pkg.train
}

# === How the nodes are started ===
start_nodes() {
    # When one process fails the others end too; when one ends well the others, which may still save, go on.
    exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --mpi=none \
        --cpu-bind=none \
        --output="$attempt_dir/logs/node-%n.rank-%t.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/p/scratch/proj12/runs/srun-by-hand # run folder if started by hand
job_workdir=/home/alice/project
job_nodes=2 job_programs=(/opt/python/bin/python3) job_cpus_per_task=72 job_time_limit=129600
job_node_rank=SLURM_NODEID job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=1 --interfaces=ib0 --python=/opt/python/bin/python3)
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh environment
    programs rendezvous_slurm rendezvous node_check watch bind_ranks node step_srun end_srun end_successor exit
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
