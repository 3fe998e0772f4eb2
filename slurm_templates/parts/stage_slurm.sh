
# --- Copies are made once on each node, by srun ---
stage_count=${#hosts[@]}
stage_on_nodes() { # SECONDS SCRIPT LOG: --overlap, so that a hanging copy does not hold the resources of the training
    timeout -k 5 "$1" srun --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1 --overlap --wait=0 \
        --kill-on-bad-exit=0 bash "$2" </dev/null >>"$3" 2>&1
}
