
# --- Remove the copies after the last attempt, and those in memory after each ---
if [ -n "$stage_key" ]; then
    { [ "$code" -eq 0 ] && [ "$warned" = null ] && [ ! -e "$HPC_LAUNCH_STOP_FILE" ]; } && stage_which=() || stage_which=(--memory)
    stage_script "$attempt_dir/stage.sh" remove "${stage_which[@]}" "$stage_key"
    stage_within 60 stage_on_nodes 50 "$attempt_dir/stage.sh" "$stage_log" || :
fi
