#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# stage-venv on site gpuless: 4 nodes x 1 process, started by torchrun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=stage-venv                                # stage_venv.yaml:1
#SBATCH --partition=compute                                  # gpuless.yaml:6
#SBATCH --nodes=4                                            # stage_venv.yaml:3
#SBATCH --ntasks-per-node=1                                  # one task per node: torchrun starts the rest
#SBATCH --cpus-per-task=32                                   # gpuless.yaml:4
#SBATCH --mem=64G                                            # gpuless.yaml:4
#SBATCH --time=01:00:00                                      # stage_venv.yaml:4
#SBATCH --no-requeue                                         # hpc-launch resubmits; Slurm must not requeue
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=stage-venv-%j.out                           # for manual starts; `submit` logs to the run folder

# === Environment ===
job_environment() {
    # shellcheck source=/dev/null
    . /home/alice/venv/bin/activate || die 'no virtual environment in /home/alice/venv' # stage_venv.yaml:5
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export OMP_NUM_THREADS=32                                # cores of a node / processes on it
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
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
        python3 -m torch.distributed.run \
        --nnodes=4 --nproc-per-node=1 --node-rank="$node" \
        --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        "$HPC_LAUNCH_CODE"/train.py
}

# === How the nodes are started ===
start_nodes() {
    # When one node fails the others end too; when one ends well the others, which may still save, go on.
    exec srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --output="$attempt_dir/logs/node-%n.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/stage-venv-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=4 job_programs=(python3) job_cpus_per_task=32 job_time_limit=3600 job_node_rank=SLURM_NODEID
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--memory-mib=65536 --python=python3 '--script=${HPC_LAUNCH_CODE}/train.py')
job_stage=node                                               # stage_venv.yaml:5
job_stage_folders() { folders=(/dev/shm); }
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh environment
    programs rendezvous_slurm rendezvous node_check watch stage_slurm stage stage_software node step_srun end_srun
    unstage end_successor exit
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
