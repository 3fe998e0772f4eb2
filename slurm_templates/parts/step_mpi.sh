
# --- Start the nodes, or each process, by MPI, and wait for their end ---
rank_here() { # as Open MPI, PMIx, MVAPICH, Hydra and Intel MPI, or Slurm name it
    local rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${MV2_COMM_WORLD_RANK:-${PMI_RANK:-${SLURM_PROCID:-}}}}}
    [ -n "$rank" ] && printf '%d\n' "$rank"
}
node_here() { # this node's place among those of the job: by its name, or else by its rank
    local at name found=()
    name=$(uname -n)
    for at in "${!hosts[@]}"; do
        [ "${hosts[at]%%.*}" != "${name%%.*}" ] || found+=("$at")
    done
    if [ "${#found[@]}" -ne 1 ]; then
        found=("$(rank_here)") && [ -n "${found[0]}" ] || return
        found=("$((found[0] / job_tasks_per_node))")
    fi
    printf '%d\n' "${found[0]}"
}
enter() { # started once per node, or once per process
    local mark
    umask go-w
    # shellcheck source=/dev/null
    . "$environment" || exit
    HPC_LAUNCH_NODE=$(node_here) || { echo "$(uname -n) is not one of the job's nodes: ${hosts[*]}" >&2; exit 1; }
    export HPC_LAUNCH_NODE
    mark=$HPC_LAUNCH_ATTEMPT_DIR/logs/node-$HPC_LAUNCH_NODE
    if [ -n "$job_each_process" ]; then
        HPC_LAUNCH_RANK=$(rank_here) || { echo "$job_step does not set the rank of this process" >&2; exit 1; }
        export HPC_LAUNCH_RANK
        export HPC_LAUNCH_LOCAL_RANK=${OMPI_COMM_WORLD_LOCAL_RANK:-${MV2_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-$((HPC_LAUNCH_RANK % job_tasks_per_node))}}}
        if [ "$((HPC_LAUNCH_RANK / job_tasks_per_node))" -ne "$HPC_LAUNCH_NODE" ]; then
            echo "$job_step put rank $HPC_LAUNCH_RANK on node $HPC_LAUNCH_NODE ($(uname -n)): ranks do not follow the order of the nodes" >&2
            exit 1
        fi
        mark=$mark.rank-$HPC_LAUNCH_RANK
    fi
    run_noted "$mark"
}
{
    declare -p hosts environment job_umask job_step job_each_process job_tasks_per_node
    declare -f "${node_functions[@]}" rank_here node_here run_noted enter
    echo enter
} >"$attempt_dir/node.sh" || die "cannot write $attempt_dir/node.sh"
stop_all() {
    : >"$attempt_dir/ending"
    kill -s TERM "$starter" 2>/dev/null
}
phase=training
start_nodes &
starter=$!
step=("$starter")
notes=$((job_nodes * job_tasks_per_node))
await_notes "$notes" node "$notes" 10
