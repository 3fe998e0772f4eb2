
# --- Copy the software to the nodes' own disks ---
# A node without a copy uses the original. Whatever fails here, the training starts.
use_staged() { # ORIGINAL: on a node, take the copy if there is one
    local stage_lock stage_copy stage_options stage_root name value
    stage_uses "$HPC_LAUNCH_ATTEMPT_DIR/staged/$(uname -n)" && [ -O "${stage_copy%/copy}/complete" ] || return 0
    for name in VIRTUAL_ENV CONDA_PREFIX HPC_LAUNCH_PYTHON HPC_LAUNCH_IMAGE PATH LD_LIBRARY_PATH PYTHONPATH; do
        [ -n "${!name:-}" ] || continue
        value=:${!name}:
        value=${value//":$1/"/":$stage_copy/"}
        value=${value//":$1:"/":$stage_copy:"}
        value=${value#:}
        export "$name=${value%:}"
    done
}
stage_software() { # or say why not
    local program only=() from=${HPC_LAUNCH_IMAGE:-}
    [ "$job_stage" = node ] || only=(--shared-only)
    if [ -z "$from" ]; then
        program=$(type -P "${HPC_LAUNCH_PYTHON:-python3}") || program=''
        from=${program%/bin/*}
    fi
    if [ -n "${HPC_LAUNCH_IMAGE:-}" ] && [ ! -f "$from" ]; then
        say "not staged: $from is not a file"
        return
    fi
    stage_pack "$from" "${only[@]}" || { say "not staged: $stage_reason"; return; }
    stage_broadcast
    mkdir -p "$attempt_dir/staged"
    stage_script "$attempt_dir/stage.sh" "$attempt_dir/staged" node --limit="$stage_limit"
    stage_within 330 stage_on_nodes 320 "$attempt_dir/stage.sh" "$stage_log" || :
    stage_counts
    say "staged: copied to $staged nodes, reused on $reused; $((stage_count - stage_done)) use the original"
    [ "$stage_done" -eq "$stage_count" ] || say "not staged, see $stage_log: $stage_reason"
    printf -v from 'use_staged %q' "$from"
    before_start "$from"
    node_functions+=(use_staged stage_uses)
}
enter stage
stage_software
software_key=$stage_key
enter environment
