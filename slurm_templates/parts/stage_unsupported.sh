
# --- No copies on the nodes' own disks ---
say "not staged: $job_stage"
