
# --- Data on the nodes: copied to their own disks, or mounted ---
# Unlike software, an archive cannot be used where it is: without it on each node, the job ends.
use_data() { # on a node: where the training finds its data
    local stage_lock stage_copy stage_options stage_root record
    record=$HPC_LAUNCH_ATTEMPT_DIR/staged/data/$(uname -n)
    [ -f "$record" ] || record=$record.${HPC_LAUNCH_NODE:-0}
    [ -f "$record" ] || return 0 # a folder, which it reads where it is
    stage_uses "$record" || { echo "[hpc-launch] $(uname -n): data not staged: its copy was removed" >&2; exit 1; }
    export HPC_LAUNCH_DATA=$stage_copy HPC_LAUNCH_DATA_FROM=$stage_copy HPC_LAUNCH_DATA_AT=$stage_copy
    [ "$stage_options" != image ] || export HPC_LAUNCH_DATA=/hpc-launch/data HPC_LAUNCH_DATA_AT=/hpc-launch/data:image-src=/
}
hold_data() { # COMMAND...: on a node, mount the image until standard input ends, with the job's script and all that it starts
    local said program began=$SECONDS stage_lock stage_copy stage_options stage_root
    said=$("$@")
    case $said in staged* | reused* | mounted*) stage_uses "$record" ;; *) false ;; esac || { echo "${said:-skipped - $(uname -n): no answer}"; return; }
    for place in "$stage_root"/mount-*; do # of jobs whose processes were all killed
        stat "$place" >/dev/null 2>&1 || unmount_data "$place" 0
    done
    find "$stage_root" -maxdepth 1 -name 'mount-*' -mmin +9 -empty -delete 2>/dev/null # never one that is mounted: EBUSY
    program=$(type -P squashfuse_ll || type -P squashfuse) || { echo "skipped - $(uname -n): no squashfuse, which mounts $stage_copy"; return; }
    place=$stage_root/mount-$$
    trap '' TERM # squashfuse inherits that: it would unmount at once
    trap 'unmount_data "$place" 20' EXIT
    if mkdir -m 700 "$place" && said=$("$program" "$stage_copy" "$place" 2>&1) && mountpoint -q "$place"; then
        trap "trap '' TERM; exit" TERM # once: another must not end what follows
        printf '%s\n' "$stage_lock" "$place" mounted "$stage_root" >"$record.new" && mv -f "$record.new" "$record" &&
            echo "mounted $place $((SECONDS - began)) s $(uname -n) $key"
        read -r _
    else
        echo "skipped - $(uname -n): $stage_copy cannot be mounted: ${said##*$'\n'}"
    fi
}
unmount_data() { # PLACE SECONDS: when nobody uses it, or after so many seconds
    local end=$((SECONDS + $2)) late=''
    while [ -z "$late" ]; do
        [ "$SECONDS" -lt "$end" ] || late=z
        fusermount3 "-u$late" "$1" || fusermount "-u$late" "$1" || umount ${late:+-l} "$1"
        rmdir "$1" && return
        [ -n "$late" ] || sleep 0.2
    done 2>/dev/null
}
data_failed() { # REASON: the job ends, unless the training can read a folder where it is
    if [ -d "$job_data" ]; then
        say "data: $job_data is read where it is: $1"
    else
        [ -z "$data_holder" ] || exec {data_pipe}>&-
        die "data not staged: $1: no training was started"
    fi
}
stage_data() {
    local options=(--data="$job_data_how") end
    stage_folders=job_data_folders stage_log=$attempt_dir/data.log stage_limit=1800 stage_time=21600
    [ "$job_data_how" != shard ] || { stage_shards=yes stage_count=$job_nodes; options+=(--shards="$job_nodes"); }
    [ -z "${job_data_inside:-}" ] || options+=(--inside)
    stage_pack "$job_data" "${options[@]}" || { data_failed "$stage_reason"; return; }
    data_key=$stage_key
    stage_broadcast
    mkdir -p "$attempt_dir/staged/data"
    [ "$stage_way" != node ] || stage_functions=(hold_data unmount_data stage_uses)
    stage_script "$attempt_dir/data.sh" "$attempt_dir/staged/data" node --limit="$stage_limit"
    if [ "$stage_way" = node ]; then
        exec {data_pipe}> >(stage_on_nodes 0 "$attempt_dir/data.sh" "$stage_log")
        data_holder=$! end=$((SECONDS + stage_time))
        until stage_counts && [ "$((stage_done + skipped))" -ge "$stage_count" ] || [ "$SECONDS" -gt "$end" ]; do
            kill -0 "$data_holder" 2>/dev/null || break
            sleep 0.2
        done
    else
        stage_within $((stage_time + 10)) stage_on_nodes "$stage_time" "$attempt_dir/data.sh" "$stage_log" || :
    fi
    stage_counts
    say "data: copied to $staged nodes, reused on $reused, mounted on $mounted of $stage_count, see $stage_log"
    [ "$stage_done" -eq "$stage_count" ] || data_failed "$stage_reason"
    before_start use_data
    node_functions+=(use_data stage_uses)
}
enter stage
data_holder='' data_key='' stage_all=$stage_count
stage_data
stage_folders=job_stage_folders stage_log=$attempt_dir/stage.log stage_limit=300 stage_time=300 stage_shards='' stage_functions=() stage_count=$stage_all
enter environment
