#!/bin/bash -l
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# site-chain-container on site chain: 1 node x 4 processes, started by torchrun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.
# chain.yaml: env: third party, 2025-01-01; a user's scripts

# === Slurm options ===
#SBATCH --job-name=site-chain-container                      # site_chain_container.yaml:1
#SBATCH --qos=normal                                         # chain.yaml:24
#SBATCH --account=proj1@h100                                 # site_chain_container.yaml:3
#SBATCH --nodes=1                                            # default
#SBATCH --ntasks-per-node=1                                  # one task per node: torchrun starts the rest
#SBATCH --cpus-per-task=96                                   # chain.yaml:12
#SBATCH --gpus-per-socket=4                                  # chain.yaml:13
#SBATCH --constraint=gpu&big                                 # chain.yaml:16 and chain.yaml:25
#SBATCH --time=00:30:00                                      # site_chain_container.yaml:4
#SBATCH --exclude=n7                                         # chain.yaml:58
#SBATCH --no-requeue                                         # hpc-launch resubmits; Slurm must not requeue
#SBATCH --output=site-chain-container-%j.out                 # for manual starts; `submit` logs to the run folder
#SBATCH --wait-all-nodes=1                                   # test-centre.yaml:5
#SBATCH --licenses=scratch                                   # test-centre.yaml:5
#SBATCH --network=disable_rdzv_get                           # test-fabric.yaml:13: with FI_RDZV=alt_read

# === Environment ===
job_environment() {
    module --force purge                                     # test-fabric.yaml:17
    # shellcheck source=/dev/null
    . /etc/profile.d/modules.sh || die 'cannot source /etc/profile.d/modules.sh' # chain.yaml:32
    module use /appl/modules || die 'module use /appl/modules failed' # chain.yaml:33
    module load lumi || die 'module load lumi failed'        # chain.yaml:34
    module load 'rocm/6.2 beta' || die 'module load rocm/6.2 beta failed' # chain.yaml:34
    export SITE_ROOT='/opt/a b'                              # chain.yaml:35; its modules want it
    unset PYTHONPATH                                         # chain.yaml:36
    export LD_LIBRARY_PATH="$CRAY_LIBRARY_PATH""${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" # chain.yaml:37
    ulimit -s unlimited || die 'ulimit -s unlimited failed'  # chain.yaml:38
    ulimit -c 0 || die 'ulimit -c 0 failed'                  # chain.yaml:38
    mkdir -p -- /scratch/proj1/logs || die 'mkdir -p -- /scratch/proj1/logs failed' # chain.yaml:39
    private_folder /scratch/proj1/hf || die '/scratch/proj1/hf cannot be created, belongs to another user, or can be replaced by one' # chain.yaml:56
    module load site-tools || die 'module load site-tools failed' # chain.yaml:59
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export PYTHONNOUSERSITE=1                                # packages in the home are not the image's
    export OMP_NUM_THREADS=24                                # cores of a node / processes on it
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
    export NCCL_SOCKET_IFNAME=hsn                            # test-fabric.yaml:7
    export NCCL_IB_HCA='=mlx5_0,mlx5_1'                      # chain.yaml:19
    export NCCL_NET='Test Net'                               # test-fabric.yaml:7
    export HF_HOME=/scratch/proj1/hf                         # chain.yaml:56
    export MIOPEN_USER_DB_PATH=/tmp/proj1-"$HPC_LAUNCH_JOB_ID" # chain.yaml:57
    export MIOPEN_CUSTOM_CACHE_DIR=/tmp/proj1-"$HPC_LAUNCH_JOB_ID" # chain.yaml:57
    export FI_RDZV=alt_read                                  # test-fabric.yaml:9
    export NCCL_ONE_NODE=1                                   # test-fabric.yaml:11
    export FI_RX=software                                    # chain.yaml:45; third party, 2025-01-01; hangs otherwise
    export NODE_CLASS=h100                                   # chain.yaml:20
    export FI_SIZE=1024                                      # chain.yaml:29; this queue is small
    export MINE=job                                          # site_chain_container.yaml:5
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
on_nodes_first() { # once, before anything else is started there
    fail() { printf '[hpc-launch] %s: %s\n' "$HOSTNAME" "$*" >&2; exit 1; }
    mkdir -p -- /tmp/proj1/x || fail 'mkdir -p -- /tmp/proj1/x failed' # chain.yaml:40
    mkdir -p -- "$SLURM_TMPDIR"/data || fail 'mkdir -p -- $SLURM_TMPDIR/data failed' # chain.yaml:41
    cp -R -- /scratch/proj1/data.tar "$SLURM_TMPDIR"/data || fail 'cp -R -- /scratch/proj1/data.tar $SLURM_TMPDIR/data failed' # chain.yaml:41
    private_folder /tmp/proj1-"$HPC_LAUNCH_JOB_ID" || fail '/tmp/proj1-$HPC_LAUNCH_JOB_ID cannot be created, belongs to another user, or can be replaced by one' # chain.yaml:57
}
within() { # inside the image or process, before what is started there
    fail() { printf '[hpc-launch] %s\n' "$*" >&2; exit 1; }
    # shellcheck source=/dev/null
    . /host/adapt.sh || fail 'cannot source /host/adapt.sh'  # chain.yaml:42
    unset TMPDIR                                             # chain.yaml:43
    export NODE_NAME="$SLURMD_NODENAME"                      # chain.yaml:50; third party, 2025-01-01
    export NCCL_CROSS_NIC=1                                  # chain.yaml:53
    unset XDG_RUNTIME_DIR                                    # chain.yaml:54; third party, 2025-01-01
    export MINE=job                                          # site_chain_container.yaml:5
    exec "$@"
}
each_rank() { # in each process, before the training
    export ROCR_VISIBLE_DEVICES="$LOCAL_RANK"                # chain.yaml:51; third party, 2025-01-01
    export PATH=/opt/site/bin"${PATH:+:$PATH}"               # chain.yaml:52; third party, 2025-01-01
    exec "$@"
}
# chain.yaml:59. Static rendezvous: ranks follow the order of the nodes.
on_each_node() {
    local node=$SLURM_NODEID logs=$HPC_LAUNCH_ATTEMPT_DIR/logs
    mkdir -m 700 "$logs/ranks-of-node-$node" && export TORCHELASTIC_ERROR_FILE=$logs/ranks-of-node-$node/launcher.json
    ulimit -s unlimited                                      # chain.yaml:38
    ulimit -c 0                                              # chain.yaml:38
    export NODE_NAME="$SLURMD_NODENAME"                      # chain.yaml:50; third party, 2025-01-01
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        apptainer exec --no-eval --nv --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /images/a.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/within.sh" \
        python3 -m torch.distributed.run \
        --nnodes=1 --nproc-per-node=4 --node-rank="$node" \
        --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        --no-python \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/each-rank.sh" bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive python3 train.py
}
inside() { # for `hpc-launch shell`, on a node
    exec apptainer exec --no-eval --nv --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /images/a.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/within.sh" \
        "$@"
}
python_in_image() { # for the node check: start Python as the training does; what precedes the mark are errors of the image
    ulimit -s unlimited                                      # chain.yaml:38
    ulimit -c 0                                              # chain.yaml:38
    export NODE_NAME="$SLURMD_NODENAME"                      # chain.yaml:50; third party, 2025-01-01
    exec apptainer exec --no-eval --nv --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /images/a.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/within.sh" \
        /bin/sh -c 'echo "hpc-launch: started" >&2; exec "$0" "$@" 2>&1' \
        python3 "$@"
}

# === How the nodes are started ===
start_nodes() {
    # When one node fails the others end too; when one ends well the others, which may still save, go on.
    exec srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --cpu-freq=high \
        --output="$attempt_dir/logs/node-%n.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/site-chain-container-by-hand # run folder if started by hand
job_workdir=/home/alice/project
job_nodes=1 job_cpus_per_task=96 job_time_limit=1800 job_node_rank=SLURM_NODEID
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=4 --gpu-vendor=nvidia --interfaces=hsn --python=python3 --image)
job_image_prefix=APPTAINERENV_
job_image_variables=(
    PYTHONUNBUFFERED PYTHONFAULTHANDLER TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_DUMP_ON_TIMEOUT
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DEBUG_INFO_PIPE_FILE PYTHONNOUSERSITE OMP_NUM_THREADS
    TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_NET HF_HOME MIOPEN_USER_DB_PATH
    MIOPEN_CUSTOM_CACHE_DIR FI_RDZV NCCL_ONE_NODE FI_RX NODE_CLASS FI_SIZE MINE
)
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh
    private_folder environment image_variables rendezvous_slurm rendezvous within node_check_image node_check watch
    each_rank bind_ranks prepare_slurm node step_srun end_srun exit
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
