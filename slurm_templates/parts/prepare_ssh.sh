
# --- What each host does first ---
node_functions+=(in_place private_folder on_nodes_first)
