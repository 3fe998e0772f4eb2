
# --- The copy is made on this machine ---
stage_count=1
stage_broadcast() { :; }
stage_on_nodes() { # SECONDS SCRIPT LOG: in the background; shards are those of "nodes" that are all here
    [ -n "$stage_shards" ] || exec env -u HPC_LAUNCH_NODE timeout -k 5 "$1" bash "$2" >>"$3" 2>&1
    for ((HPC_LAUNCH_NODE = 0; HPC_LAUNCH_NODE < job_nodes; HPC_LAUNCH_NODE++)); do
        export HPC_LAUNCH_NODE
        timeout -k 5 "$1" bash "$2" >>"$3" 2>&1
    done
}
