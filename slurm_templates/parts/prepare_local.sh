
# --- Prepare the node ---
(umask "$job_umask" && on_nodes_first) || die "cannot prepare the node"
