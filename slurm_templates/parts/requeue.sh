
# --- Requeue: Slurm started the same job again, which is an attempt with its own records ---
if [ "$restart" -gt 0 ] && [ -z "$first_step" ]; then
    until mkdir "$attempt_dir" 2>/dev/null; do
        [ -d "$attempt_dir" ] || die "cannot create $attempt_dir"
        if ! grep -qs "\"job_id\": \"$job_id\"" "$attempt_dir/job.json" && ! grep -qsxe "$job_id" -e "void .*" "$attempt_dir/claim" &&
            ! grep -qs "\"job_name\": \"$SLURM_JOB_NAME\"" "$attempt_dir/intent.json"; then
            say "the run continued without job $job_id, in $attempt_dir. Nothing was started."
            exit 75
        fi
        printf -v attempt_dir '%s/attempts/%03d' "$run_dir" "$((10#0${attempt_dir//*[!0-9]/} + 1))"
    done
    printf '{"job_id": "%s", "restart": %d}\n' "$job_id" "$restart" >"$attempt_dir/job.json"
    exec >>"$attempt_dir/batch.log" 2>&1
fi
