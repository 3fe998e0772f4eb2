
# --- Expedited requeue: for lost nodes only ---
# Slurm would hold a job whose script ends badly on healthy nodes, or that reaches its time limit, until a person releases
# it (seen with 26.05). Here a verdict decides what follows.
no_requeue() { timeout 10 scontrol update JobId="$job_id" Requeue=0 </dev/null || :; }
if [ -n "$end_time" ]; then # after the limit it is too late
    { sleep "$((end_time > $(now) + 60 ? end_time - $(now) - 60 : 0))" && no_requeue; } </dev/null &
fi
eval "next_$(declare -f call_after)"
call_after() { # EXIT_CODE
    next_call_after "$1"
    [ "$1" -eq 0 ] || [ -n "$ended_by" ] || no_requeue
}
