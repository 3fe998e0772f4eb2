
# --- Start the nodes on this machine, and wait for their end ---
phase=training
for ((node = 0; node < job_nodes; node++)); do
    HPC_LAUNCH_NODE=$node bash "$attempt_dir/node.sh" >>"$attempt_dir/logs/node-$node.log" 2>&1 </dev/null &
    step+=($!)
done
end_together node 0.2
phase=ended
say "the step ended with exit code $code"
