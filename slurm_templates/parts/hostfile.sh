
# --- Host file ---
for host in "${hosts[@]}"; do
    printf '%s slots=%d\n' "$host" "$job_processes_per_node"
done >"$attempt_dir/hostfile" || die "cannot write $attempt_dir/hostfile"
