
# --- Start the nodes on this machine, and wait for their end ---
phase=training
for ((node = 0; node < job_nodes; node++)); do
    # bash lets what runs in the background ignore these signals (bash(1), SIGNALS), and so would the ranks.
    (trap - INT QUIT && HPC_LAUNCH_NODE=$node exec bash "$attempt_dir/node.sh") >>"$attempt_dir/logs/node-$node.log" 2>&1 </dev/null &
    step+=($!)
done
end_together node 0.2
phase=ended
say "the step ended with exit code $code"
