#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# tiny on site frontier: 2 nodes x 8 processes, started by srun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=tiny                                      # job.yaml:2
#SBATCH --partition=batch                                    # frontier.yaml:35
#SBATCH --account=abc123                                     # user.yaml:3
#SBATCH --nodes=2                                            # job.yaml:3
#SBATCH --ntasks-per-node=8                                  # one task per process
#SBATCH --cpus-per-task=7                                    # 56 CPUs for 8 tasks
#SBATCH --gpus-per-node=8                                    # frontier.yaml:26
#SBATCH --time=00:15:00                                      # job.yaml:4
#SBATCH --no-requeue                                         # hpc-launch resubmits; Slurm must not requeue
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=tiny-%j.out                                 # for manual starts; `submit` logs to the run folder
#SBATCH --network=disable_rdzv_get                           # slingshot.yaml:31: with FI_CXI_RDZV_PROTO=alt_read

# === Environment ===
job_environment() {
    module load olcf-container-tools || die 'module load olcf-container-tools failed' # frontier.yaml:91
    module load apptainer-enable-mpi || die 'module load apptainer-enable-mpi failed' # frontier.yaml:91
    module load apptainer-enable-gpu || die 'module load apptainer-enable-gpu failed' # frontier.yaml:91
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export PYTHONNOUSERSITE=1                                # packages in the home are not the image's
    export OMP_NUM_THREADS=7                                 # cores of a node / processes on it
    export http_proxy=http://proxy.ccs.ornl.gov:3128/        # frontier.yaml:88
    export https_proxy=http://proxy.ccs.ornl.gov:3128/       # frontier.yaml:88
    export HTTP_PROXY=http://proxy.ccs.ornl.gov:3128/        # frontier.yaml:88
    export HTTPS_PROXY=http://proxy.ccs.ornl.gov:3128/       # frontier.yaml:88
    export no_proxy='localhost,127.0.0.0/8,*.ccs.ornl.gov'   # frontier.yaml:88
    export NO_PROXY='localhost,127.0.0.0/8,*.ccs.ornl.gov'   # frontier.yaml:88
    export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3            # frontier.yaml:68
    export MIOPEN_USER_DB_PATH=/tmp/alice-miopen-"$HPC_LAUNCH_JOB_ID" # amd.yaml:12
    export MIOPEN_CUSTOM_CACHE_DIR=/tmp/alice-miopen-"$HPC_LAUNCH_JOB_ID" # amd.yaml:12
    export FI_CXI_DISABLE_HOST_REGISTER=1                    # slingshot.yaml:16
    export FI_CXI_DEFAULT_CQ_SIZE=131072                     # slingshot.yaml:17
    export FI_CXI_DEFAULT_TX_SIZE=2048                       # slingshot.yaml:18
    export FI_CXI_RX_MATCH_MODE=hybrid                       # slingshot.yaml:19
    export FI_CXI_RDZV_EAGER_SIZE=0                          # slingshot.yaml:20
    export FI_CXI_RDZV_THRESHOLD=0                           # slingshot.yaml:21
    export FI_CXI_RDZV_GET_MIN=0                             # slingshot.yaml:22
    export NCCL_CROSS_NIC=1                                  # slingshot.yaml:23
    export NCCL_NET_GDR_LEVEL=PHB                            # slingshot.yaml:24
    export FI_MR_CACHE_MONITOR=kdreg2                        # slingshot.yaml:26
    export HSA_FORCE_FINE_GRAIN_PCIE=1                       # slingshot.yaml:26
    export FI_CXI_RDZV_PROTO=alt_read                        # frontier.yaml:70; setting of the centre that requires an sbatch option
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=$(address_of "${hosts[0]}") || die "found no address for ${hosts[0]}"
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
on_nodes_first() { # once, before anything else is started there
    fail() { printf '[hpc-launch] %s: %s\n' "$HOSTNAME" "$*" >&2; exit 1; }
    private_folder /tmp/alice-miopen-"$HPC_LAUNCH_JOB_ID" || fail '/tmp/alice-miopen-$HPC_LAUNCH_JOB_ID cannot be created, belongs to another user, or can be replaced by one' # amd.yaml:12
}
# frontier.yaml:92. srun starts each process, which takes its rank from the variables set there.
on_each_node() {
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    export LOCAL_WORLD_SIZE=8 GROUP_RANK=$SLURM_NODEID
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        apptainer exec --no-eval --rocm --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /lustre/orion/abc123/proj-shared/pytorch.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        python3 "$HPC_LAUNCH_CODE"/train.py \
        --lr 1e-3
}
inside() { # for `hpc-launch shell`, on a node
    exec apptainer exec --no-eval --rocm --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /lustre/orion/abc123/proj-shared/pytorch.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        "$@"
}
python_in_image() { # for the node check: start Python as the training does; what precedes the mark are errors of the image
    exec apptainer exec --no-eval --rocm --no-home \
        --pwd /home/alice/project \
        --bind "$HPC_LAUNCH_RUN_DIR" \
        --bind /home/alice/project \
        /lustre/orion/abc123/proj-shared/pytorch.sif \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        /bin/sh -c 'echo "hpc-launch: started" >&2; exec "$0" "$@" 2>&1' \
        python3 "$@"
}

# === How the nodes are started ===
start_nodes() {
    # When one process fails the others end too; when one ends well the others, which may still save, go on.
    exec srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --cpu-bind=mask_cpu:0x00fe000000000000,0xfe00000000000000,0x0000000000fe0000,0x00000000fe000000,0x00000000000000fe,0x000000000000fe00,0x000000fe00000000,0x0000fe0000000000 \
        --output="$attempt_dir/logs/node-%n.rank-%t.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/tiny-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2 job_cpus_per_task=7 job_time_limit=900 job_node_rank=SLURM_NODEID
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=8 --gpu-vendor=amd --memory-mib=524288 --interfaces=hsn0:hsn1:hsn2:hsn3 --full --tasks=8 --fabric=Slingshot --transport=fatal --quick --python=python3 '--script=${HPC_LAUNCH_CODE}/train.py' --image)
job_image_prefix=APPTAINERENV_
job_image_variables=(
    PYTHONUNBUFFERED PYTHONFAULTHANDLER TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_DUMP_ON_TIMEOUT
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_NCCL_DEBUG_INFO_PIPE_FILE PYTHONNOUSERSITE OMP_NUM_THREADS http_proxy
    https_proxy HTTP_PROXY HTTPS_PROXY no_proxy NO_PROXY NCCL_SOCKET_IFNAME MIOPEN_USER_DB_PATH MIOPEN_CUSTOM_CACHE_DIR
    FI_CXI_DISABLE_HOST_REGISTER FI_CXI_DEFAULT_CQ_SIZE FI_CXI_DEFAULT_TX_SIZE FI_CXI_RX_MATCH_MODE
    FI_CXI_RDZV_EAGER_SIZE FI_CXI_RDZV_THRESHOLD FI_CXI_RDZV_GET_MIN NCCL_CROSS_NIC NCCL_NET_GDR_LEVEL
    FI_MR_CACHE_MONITOR HSA_FORCE_FINE_GRAIN_PCIE FI_CXI_RDZV_PROTO
)
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh
    private_folder environment image_variables rendezvous_slurm address_by_ip rendezvous node_check_image node_check
    watch prepare_slurm node step_srun end_srun exit
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
