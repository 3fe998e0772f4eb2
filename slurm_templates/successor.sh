
# shellcheck shell=bash disable=SC2154
# --- Successor: take over where the job before left the run unfinished ---
# `run_dir` and `of`, the job before, are set above. Attempts are started as after a restart in the same job: the driver
# writes the next one for this job, whose shell then becomes that attempt's script.
own=$1 # this job's folder
leave() { printf '[hpc-launch %(%F %T)T] %s\n' -1 "$*"; exit 0; }
find_attempt() { # sets attempt_dir, the last one, owner, its job, and program, the last one's that has a script
    local folder
    attempt_dir='' program=''
    for folder in "$run_dir"/attempts/*; do
        [[ ${folder##*/} =~ ^[0-9]{3,5}$ ]] || continue
        [ -n "$attempt_dir" ] && [ "$((10#${folder##*/}))" -lt "$((10#${attempt_dir##*/}))" ] || attempt_dir=$folder
        [ ! -f "$folder/script.sh" ] || [ "$attempt_dir" != "$folder" ] || program=$folder
    done
    owner=$(head -n 1 "$attempt_dir/claim" 2>/dev/null)
    [ -n "$owner" ] && [ "${owner%% *}" != void ] || owner=$(sed -n 's/.*"job_id": "\([0-9]*\)".*/\1/p' "$attempt_dir/job.json" 2>/dev/null)
}
start_attempt() { # become the script of the last attempt, or of the one that Slurm requeued
    local line
    read -r line <"$program/script.sh" || leave "cannot read $program/script.sh"
    if ! ln "$own/batch.log" "$program/batch.log" 2>/dev/null; then # Slurm's own messages go there, too
        (umask go-w && : >>"$program/batch.log")
        exec >>"$program/batch.log" 2>&1
    fi
    case $line in *' -l') exec "$BASH" -l "$program/script.sh" "$program" ;; esac
    exec "$BASH" "$program/script.sh" "$program"
}
find_attempt
[ -n "$attempt_dir" ] || leave "the run folder $run_dir is gone"
[ "$owner" != "$SLURM_JOB_ID" ] || start_attempt # Slurm requeued this job
[ -z "$owner" ] || [ "$owner" = "$of" ] || leave "the run continues in job $owner"
if [ -e "$attempt_dir/cancel.json" ] || grep -qs '^void cancelled' "$attempt_dir/claim"; then leave "the run was cancelled"; fi
! grep -qsE '"action": "(STOP|NONE)"' "$attempt_dir/verdict.json" || leave "the run is over"
! grep -qs '"exit_code": 0,.*"warned": null' "$attempt_dir/end.json" || leave "the run is finished"
[ -f "$run_dir/after.sh" ] && [ -O "$run_dir/after.sh" ] || leave "no monitor can run here"
(umask go-w && timeout -k 5 150 bash "$run_dir/after.sh" "$attempt_dir" "--successor=$of" </dev/null >>"$own/hook.log" 2>&1)
find_attempt
[ "$owner" = "$SLURM_JOB_ID" ] || leave "nothing to start in this job (see $own/hook.log)"
start_attempt
