
# --- Unmount the data; remove copies after the last attempt, and those in memory after each ---
if [ -n "${data_holder:-}" ]; then
    (echo >&"$data_pipe") 2>/dev/null # a process that has not ended may hold the other end, too
    exec {data_pipe}>&-
    stage_within 30 tail --pid="$data_holder" -s 0.1 -f /dev/null
fi
{ [ "$code" -eq 0 ] && [ "$warned" = null ] && [ ! -e "$HPC_LAUNCH_STOP_FILE" ]; } && stage_which=() || stage_which=(--memory)
for stage_key in ${software_key:+"$software_key"} ${data_key:+"$data_key"}; do
    stage_functions=() stage_folders=job_stage_folders
    if [ "$stage_key" = "${data_key:-}" ]; then
        stage_folders=job_data_folders
        [ "$job_data_how" != shard ] || stage_shards=yes
    fi
    stage_script "$attempt_dir/stage.sh" '' remove "${stage_which[@]}"
    stage_within 60 stage_on_nodes 50 "$attempt_dir/stage.sh" "$stage_log" || :
done
