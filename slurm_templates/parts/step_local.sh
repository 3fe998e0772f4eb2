
# --- Start the nodes on this machine, and wait for their end ---
phase=training
for ((node = 0; node < job_nodes; node++)); do
    HPC_LAUNCH_NODE=$node bash "$attempt_dir/node.sh" >>"$attempt_dir/logs/node-$node.log" 2>&1 </dev/null &
    step+=($!)
done
# As with srun: when one node fails the others are ended too, and the first failure is the result.
code=0
while [ "${#step[@]}" -gt 0 ]; do
    sleep 0.2
    for node in "${!step[@]}"; do
        kill -0 "${step[node]}" 2>/dev/null && continue
        wait "${step[node]}"
        node_code=$?
        unset "step[node]"
        if [ "$node_code" -ne 0 ] && [ "$code" -eq 0 ]; then
            code=$node_code
            say "node $node ended with exit code $code"
            : >"$attempt_dir/ending"
            kill -s TERM "${step[@]}" 2>/dev/null
        fi
    done
done
phase=ended
say "the step ended with exit code $code"
