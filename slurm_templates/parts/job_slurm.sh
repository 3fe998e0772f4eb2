
# --- The job, by Slurm's variables ---
job_id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job_id=${job_id:-$SLURM_JOB_ID}
[ -z "${HPC_LAUNCH_IN_ALLOCATION:-}" ] || job_id=$HPC_LAUNCH_JOB_ID # `hpc-launch run`: one of several in this allocation
nodes=$SLURM_JOB_NODELIST
place=$nodes
restart=${SLURM_RESTART_COUNT:-0}
first_step=${2:-} # the number of this attempt's first step, where it is not the first attempt in this job
end_time=${SLURM_JOB_END_TIME:-${3:-}}
on_hosts=() # with spares: options of srun
call_after() { # EXIT_CODE: start the next attempt if one is due. May fail: every later hpc-launch command does the same
    local here=(--here)
    hook_due "$1" || return 0
    [ "$1" -ne 0 ] || [ "$warned" != null ] || here=(--well)
    trap '' USR1 TERM INT HUP # the end record is written
    [ -z "$ended_by" ] && [ -z "${HPC_LAUNCH_IN_ALLOCATION:-}" ] || here=()
    run_hook "$attempt_dir" "${here[@]}"
    [ "${#here[@]}" -eq 0 ] || continue_here
}
