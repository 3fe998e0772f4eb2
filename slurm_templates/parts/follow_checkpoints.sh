
# --- Other stages of the pipeline run for the checkpoints of this one ---
# A driver looks once the folder has not changed for a while, and waits for a checkpoint that is being written.
follow_checkpoints() {
    local before='' now='' driven='' over='' pause
    trap 'over=yes' TERM
    trap '' USR1 INT HUP
    while [ -z "$over" ]; do
        now=$(stat -c '%n %Y' "$checkpoints" "$checkpoints"/* 2>/dev/null)
        if [ -n "$now" ] && [ "$now" = "$before" ] && [ "$now" != "$driven" ]; then
            driven=$now
            timeout -k 5 600 bash "$run_dir/after.sh" "$attempt_dir" --during >>"$attempt_dir/hook.log" 2>&1
        fi
        before=$now
        sleep 5 &
        pause=$!
        wait "$pause"
    done
    kill "$pause" 2>/dev/null
}
if [ -f "$run_dir/after.sh" ] && [ -O "$run_dir/after.sh" ]; then
    follow_checkpoints </dev/null &
    follower=$!
    eval "unfollowed_$(declare -f call_after)"
    call_after() { # EXIT_CODE: a driver that is submitting something now finishes first
        kill -s TERM "$follower" 2>/dev/null && wait "$follower"
        unfollowed_call_after "$1"
    }
fi
