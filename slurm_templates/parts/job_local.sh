
# --- The job on this machine ---
job_id=${HPC_LAUNCH_JOB_ID:-by-hand-$$}
nodes=$(uname -n)
place="this machine"
restart=0
first_step=''
end_time=''
call_after() { # EXIT_CODE: the supervisor does it, but for the scheduler of another package
    declare -F hook_due >/dev/null && hook_due "$1" || return 0
    trap '' USR1 TERM INT HUP # the end record is written
    if [ "$1" -eq 0 ] && [ "$warned" = null ]; then set -- "$1" --well; fi
    run_hook "$attempt_dir" "${@:2}"
}
