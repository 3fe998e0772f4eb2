#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# pair on site local: 2 nodes with 2 roles.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`bash FILE`). Comments name sources.

# === Environment ===
job_environment() {
    : # each role sets up its own
}


# === What runs on each node ===
job_scheduler=local
# 2 roles, each with the script of a job of its own. agent/roles.py starts them in their order, watches
# all of them and ends them together.
job_roles() {
    mkdir "$attempt_dir/roles" || die "cannot write to $attempt_dir"
    ln -s train "$attempt_dir/roles/main"
    cat >"$attempt_dir/roles/plan.json" <<'END_OF_ROLE'
{"roles": {
"train": {"names": ["train"], "nodes": [[1, 1]], "ports": [], "port_range": 0, "ready": {}, "after": ["server"], "ends": true, "restart": 0, "grace": 30},
"server": {"names": ["server"], "nodes": [[0, 1]], "ports": [], "port_range": 0, "ready": {"tcp": true, "within": 600}, "after": [], "ends": false, "restart": 0, "grace": 30}
}}
END_OF_ROLE
    cat >"$attempt_dir/roles/train.sh" <<'END_OF_ROLE'
#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# pair on site local: 1 node x 1 process, started by torchrun.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`bash FILE`). Comments name sources.

# === Environment ===
job_environment() {
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=4                                 # cores of a node / processes on it
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=127.0.0.1
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
# roles_local.yaml:8. Static rendezvous: ranks follow the order of the nodes.
on_each_node() {
    local node=$HPC_LAUNCH_NODE logs=$HPC_LAUNCH_ATTEMPT_DIR/logs
    mkdir -m 700 "$logs/ranks-of-node-$node" && export TORCHELASTIC_ERROR_FILE=$logs/ranks-of-node-$node/launcher.json
    export CUDA_VISIBLE_DEVICES=$(((HPC_LAUNCH_ROLE_FIRST_NODE + node) * 2 + 0))
    exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        /home/alice/venv/bin/python -m torch.distributed.run \
        --nnodes=1 --nproc-per-node=1 --node-rank="$node" \
        --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
        --log-dir="$logs/ranks-of-node-$node" --redirects=3 --tee=3 \
        "$HPC_LAUNCH_CODE"/train.py \
            --server "$ROLE_SERVER_URL"
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/pair-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=1 job_node_rank=HPC_LAUNCH_NODE job_watch=(--hang-after=1800 --busy-after=7200 --sample-every=30)
job_phases=yes
job_parts=(
    messages job_role in_place attempt claim records signals variables fresh environment rendezvous_role watch node
    end_together step_local exit
)

# shellcheck source=/dev/null
. "$HPC_LAUNCH_RUN_DIR/hooks/runtime.sh"

END_OF_ROLE
    cat >"$attempt_dir/roles/server.sh" <<'END_OF_ROLE'
#!/bin/bash
# shellcheck disable=SC2016,SC2034,SC2153,SC2329
# pair on site local: 1 node x 1 process, started by none.
# Written by hpc-launch 0.1.0: plain bash that can be started by hand (`bash FILE`). Comments name sources.

# === Environment ===
job_environment() {
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=8                                 # cores of a node / processes on it
}

# === Rendezvous ===
job_rendezvous() {
    MASTER_ADDR=127.0.0.1
    hosts=(localhost) # all of them this machine
    choose_port 10000 29999 # sets MASTER_PORT
}

# === What runs on each node ===
# The program is started once on each node of the role.
on_each_node() {
    local node=$HPC_LAUNCH_NODE
    export CUDA_VISIBLE_DEVICES=$(((HPC_LAUNCH_ROLE_FIRST_NODE + node) * 2 + 0)),$(((HPC_LAUNCH_ROLE_FIRST_NODE + node) * 2 + 1))
    (trap - INT QUIT && exec bash "$HPC_LAUNCH_ATTEMPT_DIR/watch.sh" \
        python3 -m http.server "$ROLE_PORT") &
    await_and_note "$!" "$HPC_LAUNCH_ATTEMPT_DIR/logs/node-$node.rank-0.exit"
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/pair-by-hand # run folder if started by hand
job_workdir=/home/alice/project
job_nodes=1 job_processes_per_node=1 job_node_rank=HPC_LAUNCH_NODE
job_watch=(--hang-after=0 --busy-after=0 --sample-every=30) job_phases=
job_parts=(
    messages job_role in_place attempt claim records signals variables fresh environment rendezvous_role watch hostfile
    await_child node end_together step_local exit
)

# shellcheck source=/dev/null
. "$HPC_LAUNCH_RUN_DIR/hooks/runtime.sh"

END_OF_ROLE
}

# === Values for the part below ===
job_by_hand=/home/alice/runs/pair-by-hand # run folder if started by hand
job_workdir=/home/alice/project job_code=$job_workdir
job_nodes=2
job_parts=(
    messages job_local in_place attempt claim records signals variables fresh environment step_roles exit
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
