
# --- The job on hosts that are reached by ssh ---
job_id=${HPC_LAUNCH_JOB_ID:-by-hand-$$}
hosts=("${job_hosts[@]}")
nodes=$(IFS=, && printf '%s' "${hosts[*]}")
place=$nodes
restart=0
first_step=''
end_time=''
call_after() { :; } # the supervisor does it
