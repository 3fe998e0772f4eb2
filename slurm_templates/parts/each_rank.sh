
# --- The script that runs in each process, before the training ---
{ declare -f each_rank; echo 'each_rank "$@"'; } >"$attempt_dir/each-rank.sh" || die "cannot write $attempt_dir/each-rank.sh"
