
# --- The job, by Slurm's variables ---
job_id=$SLURM_JOB_ID
[ -z "${HPC_LAUNCH_IN_ALLOCATION:-}" ] || job_id=$HPC_LAUNCH_JOB_ID # `hpc-launch run`: one of several in this allocation
nodes=$SLURM_JOB_NODELIST
place=$nodes
restart=${SLURM_RESTART_COUNT:-0}
end_time=${SLURM_JOB_END_TIME:-}
call_after() { # EXIT_CODE: start the next attempt if one is due. May fail: every later hpc-launch command does the same
    if [ ! -f "$run_dir/after.sh" ] || [ ! -O "$run_dir/after.sh" ] || { [ "$1" -eq 0 ] && [ "$warned" = null ]; }; then return; fi
    trap '' USR1 TERM INT HUP # the end record is written
    timeout -k 5 60 bash "$run_dir/after.sh" "$attempt_dir" >>"$attempt_dir/hook.log" 2>&1 </dev/null ||
        say "the end hook cannot run here (see $attempt_dir/hook.log); the next hpc-launch command continues the run"
}
