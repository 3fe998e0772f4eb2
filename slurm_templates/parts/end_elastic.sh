
# --- Nodes lost ---
say "the step ended with exit code $code"
lost_nodes=${#hosts[@]} failed=0
for note in "$attempt_dir"/logs/node-*.exit; do
    [ -f "$note" ] || continue
    read -r node_code <"$note" || continue
    lost_nodes=$((lost_nodes - 1))
    [ "$node_code" -eq 0 ] || failed=1
done
if [ -f "$attempt_dir/agent/lost" ]; then # the step was ended for them
    read -ra lost <"$attempt_dir/agent/lost"
    lost_nodes=${#lost[@]} failed=1
fi
say "lost $lost_nodes of ${#hosts[@]} nodes"
[ "$failed" -ne 0 ] || [ "$lost_nodes" -ge "${#hosts[@]}" ] || [ -n "$ended_by" ] || code=0
