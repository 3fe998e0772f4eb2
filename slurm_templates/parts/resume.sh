
# --- The checkpoint to resume from: the newest complete one ---
job_checkpoints # sets `checkpoints`
find_checkpoint() { # sets checkpoint and checkpoint_step, both empty if there is none
    local python agent=${job_runtime:-$run_dir/hooks/}
    checkpoint='' checkpoint_step=''
    [ -n "$(ls -A "$checkpoints" 2>/dev/null)" ] || return 0
    agent=${agent%/*}/agent.pyz
    python=$(command -v python3) && [ -f "$agent" ] || { say "cannot look for a checkpoint in $checkpoints without python3 and $agent"; return 1; }
    { IFS= read -r -d '' checkpoint_step && IFS= read -r -d '' checkpoint; } < <("$python" -I "$agent" checkpoints "$checkpoints" "${job_checkpoint[@]}" || printf 'failed\0')
    [ "$checkpoint_step" != failed ]
}
saved_checkpoint() { # EXIT_CODE: add the newest checkpoint to the end record
    find_checkpoint >/dev/null 2>&1 || return 0
    saved=${checkpoint_step:-null}
    record end.json "$1"
}
find_checkpoint || die "cannot find out from which checkpoint to resume"
resumed=${checkpoint_step:-null}
export HPC_LAUNCH_RESUME_FROM=$checkpoint HPC_LAUNCH_RESUME_NAME=${checkpoint##*/} HPC_LAUNCH_RESUME_STEP=$checkpoint_step
[ -z "$checkpoint" ] || say "resuming from $(printf %q "$checkpoint")"
