
# --- The run's next job does not wait for a lost node ---
# It waits for the end of this job, which Slurm reports once it has given the node up (SlurmdTimeout, often 300 s).
eval "lost_$(declare -f call_after)"
call_after() { # EXIT_CODE
    local file next
    lost_call_after "$1"
    [ -s "$attempt_dir/agent/lost" ] && grep -qs '"action": "RETRY' "$attempt_dir/verdict.json" || return 0
    printf -v next '%s/attempts/%03d' "$run_dir" "$((10#0${attempt_dir//*[!0-9]/} + 1))"
    for file in "$next/job.json" "$run_dir"/attempts/*/successor.json; do
        [ "$file" = "$next/job.json" ] || grep -qs "\"after\": \"$job_id\"" "$file" || continue
        [[ $(cat "$file" 2>/dev/null) =~ \"job_id\":\ \"([0-9]+)\" ]] && [ "${BASH_REMATCH[1]}" != "$job_id" ] || continue
        clean_nodes && timeout 10 scontrol update JobId="${BASH_REMATCH[1]}" Dependency= </dev/null &&
            say "job ${BASH_REMATCH[1]} no longer waits for this one"
        return 0
    done
}
