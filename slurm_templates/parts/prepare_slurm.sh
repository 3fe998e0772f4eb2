
# --- Prepare the nodes ---
{ declare -f in_place private_folder on_nodes_first; echo on_nodes_first; } >"$attempt_dir/first.sh" || die "cannot write $attempt_dir/first.sh"
(umask "$job_umask" && srun --job-name=hpc-launch "${on_hosts[@]}" \
    --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1 --kill-on-bad-exit=1 bash "$attempt_dir/first.sh" </dev/null) ||
    die "cannot prepare the nodes"
