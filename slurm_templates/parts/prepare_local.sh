
# --- Prepare the node ---
(on_nodes_first) || die "cannot prepare the node"
