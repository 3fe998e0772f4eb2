#!/bin/bash -l
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# tiny on site setonix: 2 nodes x 8 processes, started by torchrun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.
# setonix.yaml: all other facts: third party, 2026-11-22; the README `Investigation of Setonix GPU Access Patterns` of a public repository, which follows pawsey.atlassian.net/wiki/spaces/US
# setonix.yaml: sbatch: third party, 2026-05-31; a group's public notes of May 2026: the centre's filter of options rejects jobs on GPUs that name CPUs
# setonix.yaml: queues: third party, 2026-11-27; public notes of users, which follow pawsey.atlassian.net/wiki/spaces/US
# setonix.yaml: paths: third party, 2026-11-27; public notes of users

# === Slurm options ===
#SBATCH --job-name=tiny                                      # job.yaml:2
#SBATCH --partition=gpu                                      # setonix.yaml:52; third party, 2026-11-27
#SBATCH --account=pawsey0001-gpu                             # user.yaml:37, with the suffix of setonix.yaml:38; third party, 2026-11-22
#SBATCH --nodes=2                                            # job.yaml:3
#SBATCH --ntasks-per-node=1                                  # one task per node: torchrun starts the rest
#SBATCH --gres=gpu:8                                         # setonix.yaml:34; third party, 2026-11-22
#SBATCH --time=00:15:00                                      # job.yaml:4
#SBATCH --no-requeue                                         # hpc-launch resubmits; Slurm must not requeue
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=tiny-%j.out                                 # for manual starts; `submit` logs to the run folder

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
    export MIOPEN_USER_DB_PATH=/tmp/alice-miopen-"$HPC_LAUNCH_JOB_ID" # amd.yaml:12
    export MIOPEN_CUSTOM_CACHE_DIR=/tmp/alice-miopen-"$HPC_LAUNCH_JOB_ID" # amd.yaml:12
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
on_nodes_first() { # once, before anything else is started there
    fail() { printf '[hpc-launch] %s: %s\n' "$HOSTNAME" "$*" >&2; exit 1; }
    private_folder /tmp/alice-miopen-"$HPC_LAUNCH_JOB_ID" || fail '/tmp/alice-miopen-$HPC_LAUNCH_JOB_ID cannot be created, belongs to another user, or can be replaced by one' # amd.yaml:12
}
# --set launcher=torchrun. Static rendezvous: ranks follow the order of the nodes.
on_each_node() {
    local node=$SLURM_NODEID logs=$HPC_LAUNCH_ATTEMPT_DIR/logs
    mkdir -m 700 "$logs/ranks-of-node-$node" && export TORCHELASTIC_ERROR_FILE=$logs/ranks-of-node-$node/launcher.json
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        python3 -m torch.distributed.run \
        --nnodes=2 --nproc-per-node=8 --node-rank="$node" \
        --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        --no-python bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive python3 "$HPC_LAUNCH_CODE"/train.py \
            --lr 1e-3
}

# === How the nodes are started ===
start_nodes() {
    # When one node fails the others end too; when one ends well the others, which may still save, go on.
    exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --output="$attempt_dir/logs/node-%n.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/tiny-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2 job_programs=(python3) job_cpus_per_task=64 job_time_limit=900 job_node_rank=SLURM_NODEID
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=8 --gpu-vendor=amd --memory-mib=235520 --python=python3 '--script=${HPC_LAUNCH_CODE}/train.py')
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh
    private_folder environment programs rendezvous_slurm rendezvous node_check watch bind_ranks prepare_slurm node
    step_srun end_srun exit
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
