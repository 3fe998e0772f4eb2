
# --- Copies are made once on each node, by srun ---
stage_count=${#hosts[@]}
stage_broadcast() { # many nodes: Slurm forwards the archive from node to node, and the shared disk is read once
    local needed=$attempt_dir/stage.needs root
    [ "$stage_count" -ge "${HPC_LAUNCH_BROADCAST_FROM:-16}" ] && [ -n "$stage_archive" ] || return
    stage_script "$attempt_dir/stage.sh" '' needs "$stage_store"
    stage_within 90 stage_on_nodes 80 "$attempt_dir/stage.sh" "$needed"
    # Not if one node has no room or another folder: sbcast writes the same path on all nodes.
    [ "$(grep -cE '^(needed|reused) ' "$needed")" -eq "$stage_count" ] || return
    root=$(sed -n 's/^needed //p' "$needed" | sort -u)
    case $root in '' | *$'\n'*) return ;; esac
    say "Slurm forwards $stage_archive to $stage_count nodes"
    stage_within $((stage_time + 10)) timeout -k 5 "$stage_time" sbcast --force "$stage_archive" "$root/$stage_key.sbcast" </dev/null >>"$stage_log" 2>&1
}
stage_on_nodes() { # SECONDS SCRIPT LOG: in the background. A hanging copy holds nothing of the training, and a step that ends nothing of the copy
    exec env -u HPC_LAUNCH_NODE -u SLURM_MEM_PER_CPU -u SLURM_MEM_PER_GPU timeout -k 5 "$1" srun --job-name=hpc-launch "${on_hosts[@]}" --overlap --mem=0 --wait=0 \
        --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1 \
        --no-kill --kill-on-bad-exit=0 bash "$2" >>"$3" 2>&1
}
