#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# grpo on site booster: 4 nodes with 3 roles.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Slurm options ===
#SBATCH --job-name=grpo                                      # roles.yaml:2
#SBATCH --partition=booster                                  # booster.yaml:11
#SBATCH --qos=normal                                         # booster.yaml:11
#SBATCH --account=proj12                                     # roles.yaml:3
#SBATCH --nodes=4                                            # roles.yaml:4
#SBATCH --ntasks-per-node=1                                  # one task per node: torchrun starts the rest
#SBATCH --cpus-per-task=96                                   # booster.yaml:6
#SBATCH --gres=gpu:4                                         # booster.yaml:6
#SBATCH --mem=0                                              # booster.yaml:11
#SBATCH --exclusive                                          # booster.yaml:11
#SBATCH --time=02:00:00                                      # booster.yaml:11
#SBATCH --signal=B:USR1@600                                  # default
#SBATCH --requeue                                            # booster.yaml:3
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=grpo-%j.out                                 # for manual starts; `submit` logs to the run folder
#SBATCH --licenses=scratch                                   # booster.yaml:11

# === Environment ===
job_environment() {
    : # each role sets up its own
}


# === What runs on each node ===
job_scheduler=slurm
# 3 roles, each with the script of a job of its own. agent/roles.py starts them in their order, watches
# all of them and ends them together.
job_roles() {
    mkdir "$attempt_dir/roles" || die "cannot write to $attempt_dir"
    ln -s train "$attempt_dir/roles/main"
    cat >"$attempt_dir/roles/plan.json" <<'END_OF_ROLE'
{"roles": {
"train": {"names": ["train"], "nodes": [[1, 3]], "ports": [], "port_range": 0, "ready": {}, "after": ["server", "metrics"], "ends": true, "restart": 0, "grace": 300},
"server": {"names": ["server"], "nodes": [[0, 1]], "ports": [], "port_range": 0, "ready": {"http": "/health/", "within": 1800}, "after": [], "ends": false, "restart": 2, "grace": 30},
"metrics": {"names": ["metrics"], "nodes": [[0, 1]], "ports": ["admin"], "port_range": 0, "ready": {}, "after": ["server"], "ends": false, "restart": 0, "grace": 30}
}}
END_OF_ROLE
    cat >"$attempt_dir/roles/train.sh" <<'END_OF_ROLE'
#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# grpo on site booster: 3 nodes x 4 processes, started by torchrun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Environment ===
job_environment() {
    module load Stages/2026 || die 'module load Stages/2026 failed' # booster.yaml:19
    module load CUDA/13 || die 'module load CUDA/13 failed'  # booster.yaml:19
    # shellcheck source=/dev/null
    . /home/alice/venvs/train/bin/activate || die 'no virtual environment in /home/alice/venvs/train' # roles.yaml:5
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=12                                # cores of a node / processes on it
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
    export NCCL_SOCKET_IFNAME=ib0                            # booster.yaml:20
    unset NCCL_DEBUG                                         # booster.yaml:20
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}i
    choose_port 12000 12999 # sets MASTER_PORT
}

# === What runs on each node ===
# roles.yaml:22. Static rendezvous: ranks follow the order of the nodes.
on_each_node() {
    local node=$SLURM_NODEID logs=$HPC_LAUNCH_ATTEMPT_DIR/logs
    mkdir -m 700 "$logs/ranks-of-node-$node" && export TORCHELASTIC_ERROR_FILE=$logs/ranks-of-node-$node/launcher.json
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/guard.sh" \
        bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        python3 -m torch.distributed.run \
        --nnodes=3 --nproc-per-node=4 --node-rank="$node" \
        --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        "$HPC_LAUNCH_CODE"/grpo.py \
            --vllm_server_host "$ROLE_SERVER_HOST" \
            --vllm_server_port "$ROLE_SERVER_PORT"
}

# === How the nodes are started ===
start_nodes() {
    # When one node fails the others end too; when one ends well the others, which may still save, go on.
    exec srun "${on_hosts[@]}" --nodes=3 --ntasks=3 --ntasks-per-node=1 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --overlap \
        --mem=0 \
        --mpi=none \
        --output="$attempt_dir/logs/node-%n.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/p/scratch/proj12/runs/grpo-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=3 job_programs=(python3) job_cpus_per_task=96 job_time_limit=7200 job_warn='file'
job_node_rank=SLURM_NODEID job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30) job_phases=yes
job_stripe=(-E 64M -c 1 -E -1 -c 8)
job_secrets=(HF_TOKEN)
job_checkpoints() { checkpoints="$HPC_LAUNCH_RUN_DIR"/checkpoints; }
job_checkpoint=('checkpoint-(\d+)' --complete=trainer_state.json)
job_parts=(
    messages job_role in_place attempt claim records signals variables resume environment programs secrets
    rendezvous_role guard watch stripe node step_srun end_srun exit
)

# shellcheck source=/dev/null
. "$HPC_LAUNCH_RUN_DIR/hooks/runtime.sh"

END_OF_ROLE
    cat >"$attempt_dir/roles/server.sh" <<'END_OF_ROLE'
#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# grpo on site booster: 1 node x 1 process, started by none.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Environment ===
job_environment() {
    module load Stages/2026 || die 'module load Stages/2026 failed' # booster.yaml:19
    module load CUDA/13 || die 'module load CUDA/13 failed'  # booster.yaml:19
    # shellcheck source=/dev/null
    . /home/alice/venvs/train/bin/activate || die 'no virtual environment in /home/alice/venvs/train' # roles.yaml:5
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=48                                # cores of a node / processes on it
    export NCCL_SOCKET_IFNAME=ib0                            # booster.yaml:20
    unset NCCL_DEBUG                                         # booster.yaml:20
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}i
    choose_port 12000 12999 # sets MASTER_PORT
}

# === What runs on each node ===
# The program is started once on each node of the role.
on_each_node() {
    local node=$SLURM_NODEID
    unset SLURM_NTASKS                                       # `unset` of the role
    role_gpus 0 3
    (trap - INT QUIT && exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        trl vllm-serve --model my/model --port "$ROLE_PORT") &
    await_and_note "$!" "$HPC_LAUNCH_ATTEMPT_DIR/logs/node-$node.rank-0.exit"
}

# === How the nodes are started ===
start_nodes() {
    # When one node fails the others end too; when one ends well the others, which may still save, go on.
    exec srun "${on_hosts[@]}" --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --overlap \
        --mem=0 \
        --mpi=none \
        --output="$attempt_dir/logs/node-%n.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/p/scratch/proj12/runs/grpo-by-hand # run folder if started by hand
job_workdir=/home/alice/project
job_nodes=1 job_processes_per_node=1 job_cpus_per_task=96 job_time_limit=7200 job_node_rank=SLURM_NODEID
job_watch=(--hang-after=0 --busy-after=0 --sample-every=30) job_phases=
job_secrets=(HF_TOKEN)
job_parts=(
    messages job_role in_place attempt claim records signals variables fresh environment secrets rendezvous_role watch
    hostfile await_child role_gpus node step_srun end_srun exit
)

# shellcheck source=/dev/null
. "$HPC_LAUNCH_RUN_DIR/hooks/runtime.sh"

END_OF_ROLE
    cat >"$attempt_dir/roles/metrics.sh" <<'END_OF_ROLE'
#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# grpo on site booster: 1 node x 1 process, started by none.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`sbatch FILE`). Comments name sources.

# === Environment ===
job_environment() {
    module load Stages/2026 || die 'module load Stages/2026 failed' # booster.yaml:19
    module load CUDA/13 || die 'module load CUDA/13 failed'  # booster.yaml:19
    # shellcheck source=/dev/null
    . /home/alice/venvs/train/bin/activate || die 'no virtual environment in /home/alice/venvs/train' # roles.yaml:5
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=48                                # cores of a node / processes on it
    export NCCL_SOCKET_IFNAME=ib0                            # booster.yaml:20
    unset NCCL_DEBUG                                         # booster.yaml:20
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=${hosts[0]}i
    choose_port 12000 12999 # sets MASTER_PORT
}

# === What runs on each node ===
# The program is started once on each node of the role.
on_each_node() {
    local node=$SLURM_NODEID
    role_gpus 3 1
    (trap - INT QUIT && exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        python metrics.py "$ROLE_SERVER_URL") &
    await_and_note "$!" "$HPC_LAUNCH_ATTEMPT_DIR/logs/node-$node.rank-0.exit"
}

# === How the nodes are started ===
start_nodes() {
    # When one node fails the others end too; when one ends well the others, which may still save, go on.
    exec srun "${on_hosts[@]}" --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task="$cpus" \
        --kill-on-bad-exit=1 --wait=0 --export=ALL \
        --overlap \
        --mem=0 \
        --mpi=none \
        --output="$attempt_dir/logs/node-%n.log" --open-mode=append \
        bash "$attempt_dir/node.sh" </dev/null
}

# === Values for the part below ===
job_by_hand=/p/scratch/proj12/runs/grpo-by-hand # run folder if started by hand
job_workdir=/home/alice/project
job_nodes=1 job_processes_per_node=1 job_cpus_per_task=96 job_time_limit=7200 job_node_rank=SLURM_NODEID
job_watch=(--hang-after=0 --busy-after=0 --sample-every=30) job_phases=
job_secrets=(HF_TOKEN)
job_parts=(
    messages job_role in_place attempt claim records signals variables fresh environment secrets rendezvous_role watch
    hostfile await_child role_gpus node step_srun end_srun exit
)

# shellcheck source=/dev/null
. "$HPC_LAUNCH_RUN_DIR/hooks/runtime.sh"

END_OF_ROLE
}

# === Values for the part below ===
job_by_hand=/p/scratch/proj12/runs/grpo-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=4 job_time_limit=7200 job_warn='file'
job_check=(--gpus=4 --gpu-vendor=nvidia --gpu-model=a100 --memory-mib=512000 '--writable=${HPC_LAUNCH_RUN_DIR}/checkpoints' --python=python3)
job_stripe=(-E 64M -c 1 -E -1 -c 8)
job_secrets=(HF_TOKEN)
job_checkpoints() { checkpoints="$HPC_LAUNCH_RUN_DIR"/checkpoints; }
job_checkpoint=('checkpoint-(\d+)' --complete=trainer_state.json)
job_parts=(
    messages job_slurm in_place attempt run_hook requeue continue_here claim records signals variables resume
    environment secrets rendezvous_slurm node_check guard stripe step_roles end_successor exit
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
