
# --- Successor: not needed where the training is done ---
# The run's next job waits for the end of this one. It would end at once; until then it would count as a pending job.
if [ "$code" -eq 0 ] && [ -z "$ended_by" ] && [ "$warned" = null ] && [ ! -e "$attempt_dir/stop" ]; then
    for file in "$run_dir"/attempts/*/successor.json; do
        grep -qs "\"after\": \"$job_id\"" "$file" && [[ $(<"$file") =~ \"job_id\":\ \"([0-9]+)\" ]] || continue
        successor=${BASH_REMATCH[1]}
        [[ $(<"$file") =~ \"job_name\":\ \"([^\"]+)\" ]] || continue
        timeout 10 scancel --name="${BASH_REMATCH[1]}" "$successor" </dev/null || : # not another job that has the id
    done
fi
