
# --- Variables for the training ---
export HPC_LAUNCH_RUN_DIR=$run_dir HPC_LAUNCH_RUN_NAME=${run_dir##*/} HPC_LAUNCH_ATTEMPT_DIR=$attempt_dir HPC_LAUNCH_JOB_ID=$job_id
if [ -n "${job_code:-}" ]; then
    HPC_LAUNCH_CODE=$run_dir/code # as it was at submission; as it is now if started by hand
    [ -d "$HPC_LAUNCH_CODE" ] || HPC_LAUNCH_CODE=$job_code
    export HPC_LAUNCH_CODE
fi
export HPC_LAUNCH_STOP_FILE=$attempt_dir/stop # appears when the training has to save and exit
export HPC_LAUNCH_DONE_FILE=$attempt_dir/done # the training may create it when no step is left
job_attempt=${attempt_dir#"$run_dir"/attempts/}
export HPC_LAUNCH_ATTEMPT=$((10#0${job_attempt%%/*}))
export HPC_LAUNCH_END_TIME=${end_time:-${job_time_limit:+$((started + job_time_limit))}} # time limit, in seconds since 1970
say "job $job_id on $place, attempt in $attempt_dir; the training's output is in logs/node-*.log there"
