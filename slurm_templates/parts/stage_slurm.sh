
# --- Copies are made once on each node, by srun ---
stage_count=${#hosts[@]}
stage_broadcast() { # many nodes: Slurm forwards the archive from node to node, and the shared disk is read once
    local needed=$attempt_dir/stage.needs root archive=${HPC_LAUNCH_IMAGE:-$stage_store/$stage_key.tar}
    [ "$stage_count" -ge "${HPC_LAUNCH_BROADCAST_FROM:-16}" ] || return
    stage_script "$attempt_dir/stage.sh" needs "$stage_store" "$stage_key"
    stage_within 90 stage_on_nodes 80 "$attempt_dir/stage.sh" "$needed"
    # Not if one node has no room or another folder: sbcast writes the same path on all nodes.
    [ "$(grep -cE '^(needed|reused) ' "$needed")" -eq "$stage_count" ] || return
    root=$(sed -n 's/^needed //p' "$needed" | sort -u)
    case $root in '' | *$'\n'*) return ;; esac
    stage_within 310 timeout -k 5 300 sbcast --force "$archive" "$root/$stage_key.sbcast" </dev/null >>"$stage_log" 2>&1
}
stage_on_nodes() { # SECONDS SCRIPT LOG: a hanging copy holds nothing of the training, and a step that ends nothing of the copy
    env -u SLURM_MEM_PER_CPU -u SLURM_MEM_PER_GPU timeout -k 5 "$1" srun --job-name=hpc-launch "${on_hosts[@]}" --overlap --mem=0 --wait=0 \
        --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1 \
        --kill-on-bad-exit=0 bash "$2" </dev/null >>"$3" 2>&1
}
