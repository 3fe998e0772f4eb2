
# --- The job on this machine ---
job_id=${HPC_LAUNCH_JOB_ID:-by-hand-$$}
nodes=$(uname -n)
place="this machine"
restart=0
first_step=''
end_time=''
call_after() { :; } # the supervisor does it
