
# --- Exit code ---
rm -f "$attempt_dir"/agent/*.pipe # a copy of the run may not be able to hold a named pipe
[ -z "$ended_by" ] || [ "$code" -ne 0 ] || code=1
exit "$code"
