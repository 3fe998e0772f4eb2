
# --- Host file, with the slots of each host ---
for node in "${!hosts[@]}"; do
    printf '%s slots=%d\n' "${hosts[node]}" "${job_slots[node]}"
done >"$attempt_dir/hostfile" || die "cannot write $attempt_dir/hostfile"
