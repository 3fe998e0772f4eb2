
# --- The end hook: starts the next attempt, and what else is due when a job ends ---
hook_due() { # EXIT_CODE: whether something may be due
    [ -f "$run_dir/after.sh" ] && [ -O "$run_dir/after.sh" ] || return
    [ "$1" -eq 0 ] && [ "$warned" = null ] || return 0
    # A stage of a pipeline: others may follow. A point of a sweep: there may be room for further points now.
    [ -e "$run_dir/stage.json" ] || { [ -f "$run_dir/../sweep.json" ] && [ ! -e "$run_dir/../submitted" ]; }
}
run_hook() { # ATTEMPT_FOLDER [OPTION]
    # A stage of a pipeline may submit a whole sweep.
    timeout -k 5 "$([ -e "$run_dir/stage.json" ] && echo 300 || echo 60)" bash "$run_dir/after.sh" "$@" >>"$1/hook.log" 2>&1 </dev/null ||
        say "the end hook cannot run here (see $1/hook.log); the next hpc-launch command continues the run"
}
