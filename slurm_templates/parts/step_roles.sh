
# --- Start the roles, watch them, and end them together ---
python=$(command -v python3) || die "found no python3 on $HOSTNAME, which starts the roles"
[ -f "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" ] || die "found no hooks/agent.pyz, which starts the roles: use \`hpc-launch submit\`"
job_roles
role_hosts=()
for ((node = 0; node < job_nodes; node++)); do # without a scheduler, all of them are this machine
    role_hosts+=("${hosts[node]:-127.0.0.1}${job_addresses[node]:+=${job_addresses[node]}}")
done
enter training # the roles start
"$python" -I "$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz" roles "$job_scheduler" "$attempt_dir" "${role_hosts[@]}" </dev/null &
step=($!)
while :; do # a trapped signal ends `wait` early, with a code that is not the program's
    interrupted=
    wait "${step[0]}"
    code=$?
    [ -n "$interrupted" ] || break
done
phase=ended
say "the roles ended with exit code $code"
