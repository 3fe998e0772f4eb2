
# --- Start the nodes over ssh, and wait for their end ---
# Each host ends its part of the job when its connection ends or falls silent (agent/on_host.py).
begin() { # NODE: in the shell that comes over ssh
    local python
    umask go-w
    # shellcheck source=/dev/null
    . "$environment" || exit
    ! declare -F forget_environment >/dev/null || forget_environment
    export HPC_LAUNCH_NODE=$1
    python=$(command -v python3) || { echo "$(uname -n) has no python3" >&2; exit 127; }
    exec "$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" on_host ${job_lease:+--lease} bash "$HPC_LAUNCH_ATTEMPT_DIR/node.sh" enter
}
enter() {
    local node=$HPC_LAUNCH_NODE
    [ -z "${job_devices[node]:-}" ] || export CUDA_VISIBLE_DEVICES=${job_devices[node]}
    [ -z "${job_interfaces[node]:-}" ] || export NCCL_SOCKET_IFNAME="=${job_interfaces[node]}" GLOO_SOCKET_IFNAME=${job_interfaces[node]}
    if declare -F on_nodes_first >/dev/null; then (umask "$job_umask" && on_nodes_first) || exit; fi
    if declare -F each_slot >/dev/null; then each_slot; fi
    run_noted "$HPC_LAUNCH_ATTEMPT_DIR/logs/node-$node"
}
{
    declare -p environment job_umask job_step
    # shellcheck disable=SC2154 # each is set where a host needs it
    declare -p job_lease job_addresses job_slots job_first_ranks job_devices job_interfaces 2>/dev/null
    declare -f "${node_functions[@]}" run_noted begin enter
    echo '"$@"'
} >"$attempt_dir/node.sh" || die "cannot write $attempt_dir/node.sh"
start_nodes() {
    local python
    python=$(command -v python3) || die "found no python3 on $HOSTNAME"
    exec "$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" fan_out "$attempt_dir" "${hosts[@]}" </dev/null
}
stop_all() {
    : >"$attempt_dir/ending"
    kill -s TERM "$starter" 2>/dev/null
}
[ -z "${job_copies+set}" ] || copy_to_hosts
phase=training
start_nodes &
starter=$!
step=("$starter")
await_notes "${job_processes:-$job_nodes}" node "${job_processes:-$job_nodes}" 5
[ -z "${job_copies+set}" ] || { fetch_the_rest; look_at_notes; }
