
# --- The script that runs inside the image or process, before the training ---
{ declare -f within; echo 'within "$@"'; } >"$attempt_dir/within.sh" || die "cannot write $attempt_dir/within.sh"
