
# --- The script of a node ---
{ declare -f "${node_functions[@]}"; echo on_each_node; } >"$attempt_dir/node.sh" || die "cannot write $attempt_dir/node.sh"
