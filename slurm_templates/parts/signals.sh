
# --- Signals ---
step=() # the processes that this shell waits for
on_warning() { # Slurm's warning before the time limit, or a preemption
    warned=$(now) warned_by=USR1
    say "warned: the end is near; asking the training to save ($HPC_LAUNCH_STOP_FILE)"
    : >"$HPC_LAUNCH_STOP_FILE"
}
on_end() { # SIGNAL EXIT_CODE: time limit or cancel; little time is left, so write the record first
    ended_by=$1
    say "ended by SIG$1"
    : >"$attempt_dir/ending"
    record end.json "${exit_code:-$2}"
    if [ "$phase" = training ]; then
        kill -s TERM "${step[@]}" 2>/dev/null
    elif [ -z "$exit_code" ]; then # while the script exits, another `exit` would leave out the rest
        exit "$2"
    fi
}
trap 'interrupted=1; on_warning' USR1
trap 'interrupted=1; on_end TERM 143' TERM
trap 'interrupted=1; on_end INT 130' INT
trap 'interrupted=1; on_end HUP 129' HUP
