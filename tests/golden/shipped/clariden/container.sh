#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# tiny on site clariden: 2 nodes x 4 processes, started by srun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.
# clariden.yaml: queues.normal.limits: third party, 2026-09-30; public notes of two groups

# === Slurm options ===
#SBATCH --job-name=tiny                                      # job.yaml:2
#SBATCH --partition=normal                                   # clariden.yaml:36
#SBATCH --account=a-abc                                      # user.yaml:5
#SBATCH --nodes=2                                            # job.yaml:3
#SBATCH --ntasks-per-node=4                                  # one task per process
#SBATCH --cpus-per-task=72                                   # 288 CPUs for 4 tasks
#SBATCH --time=00:15:00                                      # job.yaml:4
#SBATCH --no-requeue                                         # hpc-launch resubmits; Slurm must not requeue
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=tiny-%j.out                                 # for manual starts; `submit` logs to the run folder

# === Environment ===
job_environment() {
    ulimit -c 0 || die 'ulimit -c 0 failed'                  # cscs.yaml:37; a crash of many processes would leave many large files
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export PYTHONNOUSERSITE=1                                # packages in the home are not the image's
    export OMP_NUM_THREADS=72                                # cores of a node / processes on it
    export NCCL_SOCKET_IFNAME=hsn                            # slingshot.yaml:13
    export FI_CXI_DISABLE_HOST_REGISTER=1                    # slingshot.yaml:16
    export FI_CXI_DEFAULT_CQ_SIZE=131072                     # slingshot.yaml:17
    export NCCL_CROSS_NIC=1                                  # slingshot.yaml:23
    export NCCL_NET_GDR_LEVEL=PHB                            # slingshot.yaml:24
    export FI_MR_CACHE_MONITOR=userfaultfd                   # slingshot.yaml:25
    export NCCL_NET='AWS Libfabric'                          # slingshot.yaml:27; without the plugin, the job fails instead of falling back to TCP
    export FI_CXI_DEFAULT_TX_SIZE=16384                      # cscs.yaml:29
    export FI_CXI_RX_MATCH_MODE=software                     # cscs.yaml:30
    export NCCL_PROTO='^LL128'                               # cscs.yaml:32; the centre disables this protocol, which NCCL 2.27 enabled and which is slower here
    export MPICH_GPU_SUPPORT_ENABLED=0                       # cscs.yaml:33; MPI's GPU support conflicts with NCCL
    export TORCH_NCCL_ASYNC_ERROR_HANDLING=1                 # cscs.yaml:34
    export CUDA_CACHE_DISABLE=1                              # cscs.yaml:34
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
# cscs.yaml:63. srun starts each process, which takes its rank from the variables set there.
on_each_node() {
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    export LOCAL_WORLD_SIZE=4 GROUP_RANK=$SLURM_NODEID
    ulimit -c 0                                              # cscs.yaml:37; a crash of many processes would leave many large files
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/bind.sh" exclusive python3 "$HPC_LAUNCH_CODE"/train.py \
        --lr 1e-3
}
python_in_image() { # for the node check: start Python as the training does; what precedes the mark are errors of the image
    ulimit -c 0                                              # cscs.yaml:37; a crash of many processes would leave many large files
    exec /bin/sh -c 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" exec "$0" "$@"' \
        /bin/sh -c 'echo "hpc-launch: started" >&2; exec "$0" "$@" 2>&1' \
        python3 "$@"
}
srun_image() { # for the node check: a step in the image, beside the one on the nodes
    exec srun \
        --environment=pytorch \
        "$@"
}

# === How the nodes are started ===
start_nodes() {
    # When one process fails the others end too; when one ends well the others, which may still save, go on.
    exec srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --cpu-bind=none \
        --environment=pytorch \
        --output="$attempt_dir/logs/node-%n.rank-%t.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/tiny-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2 job_cpus_per_task=72 job_time_limit=900 job_node_rank=SLURM_NODEID
job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_check=(--gpus=4 --gpu-vendor=nvidia --memory-mib=870400 --interfaces=hsn --full --tasks=4 --fabric=Slingshot --transport=fatal --quick --python=python3 '--script=${HPC_LAUNCH_CODE}/train.py' --image)
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables fresh environment
    rendezvous_slurm rendezvous node_check_image node_check watch bind_ranks node step_srun end_srun exit
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
