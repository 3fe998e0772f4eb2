
# --- Exit code ---
[ -z "$ended_by" ] || [ "$code" -ne 0 ] || code=1
exit "$code"
