
# --- One role of a job: agent/roles.py started this script, and says on which nodes ---
job_id=$HPC_LAUNCH_JOB_ID
read -ra hosts <<<"$HPC_LAUNCH_ROLE_NODES"
nodes=$(IFS=, && printf '%s' "${hosts[*]}")
place=$nodes
restart=0
first_step=''
end_time=${HPC_LAUNCH_END_TIME:-}
for name in job_hosts job_addresses job_slots job_devices job_interfaces; do # those of its own hosts
    declare -n job_values=$name
    [ "${#job_values[@]}" -eq 0 ] || job_values=("${job_values[@]:HPC_LAUNCH_ROLE_FIRST_NODE:${#hosts[@]}}")
    unset -n job_values
done
job_first_ranks=(0)
for name in "${job_slots[@]}"; do job_first_ranks+=($((job_first_ranks[-1] + name))); done
on_hosts=(--nodelist="$nodes") # options of srun
call_after() { :; } # the job does it
