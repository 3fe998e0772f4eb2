
# --- The checkpoint to resume from: the newest complete one ---
# A checkpoint that a killed job left incomplete is skipped.
job_checkpoints # sets `checkpoints`
is_step() { # TEXT: bash would evaluate anything else in an arithmetic expression, such as `a[$(command)]`
    case $1 in '' | *[!0-9]*) return 1 ;; esac
    [ "${#1}" -lt 18 ]
}
declare -F job_checkpoint_has_files >/dev/null || job_checkpoint_has_files() { :; }
has_content() { # FILE...: one of them exists and is not empty
    local file
    for file; do
        [ ! -f "$file" ] || [ ! -s "$file" ] || return 0
    done
    return 1
}
is_whole() { # CHECKPOINT
    local file head end found newest=''
    if [ -n "${job_checkpoint_latest:-}" ]; then
        [ ! -f "$checkpoints/$job_checkpoint_latest" ] || read -r newest <"$checkpoints/$job_checkpoint_latest"
        if [ "${1##*/}" != "$newest" ]; then # the file names the newest; those before it are complete too
            [ -n "${job_checkpoint_steps:-}" ] && [[ $newest =~ $job_checkpoint_names ]] && is_step "${BASH_REMATCH[2]}" || return 1
            found=$((10#${BASH_REMATCH[2]}))
            [[ ${1##*/} =~ $job_checkpoint_names ]] && is_step "${BASH_REMATCH[2]}" || return 1
            [ "$((10#${BASH_REMATCH[2]}))" -lt "$found" ] || return 1
        fi
    fi
    job_checkpoint_has_files "$1" || return 1
    found=''
    while IFS= read -r -d '' file; do # torch.save writes zip files: an incomplete one starts as such and lacks the end
        found=1 head='' end=''
        IFS= LC_ALL=C read -r -N 4 head <"$file" || :
        [ "$head" = $'PK\003\004' ] || continue
        IFS= LC_ALL=C read -r -N 4 end < <(tail -c 22 "$file")
        [ "$end" = $'PK\005\006' ] || return 1
    done < <(find -H "$1" -xtype f -print0)
    [ -n "$found" ]
}
find_checkpoint() { # sets checkpoint and checkpoint_step, both empty if there is none
    local LC_ALL=C path at=0 found=() steps=()
    checkpoint='' checkpoint_step=''
    for path in "$checkpoints"/*; do
        [ -e "$path" ] && [[ ${path##*/} =~ $job_checkpoint_names ]] || continue
        if [ -n "${job_checkpoint_steps:-}" ]; then
            at=${BASH_REMATCH[2]}
            is_step "$at" || continue
            found[10#$at]=$path
        else
            at=$(stat -L -c %Y "$path") && is_step "$at" && found[10#$at]=$path
        fi
    done
    steps=("${!found[@]}") # in ascending order
    for ((at = ${#steps[@]} - 1; at >= 0; at--)); do
        if is_whole "${found[steps[at]]}"; then
            checkpoint=${found[steps[at]]}
            [ -z "${job_checkpoint_steps:-}" ] || checkpoint_step=${steps[at]}
            return
        fi
        say "skipped $(printf %q "${found[steps[at]]##*/}"): this checkpoint is incomplete"
    done
}
saved_checkpoint() { # EXIT_CODE: add the newest checkpoint to the end record
    find_checkpoint >/dev/null
    saved=${checkpoint_step:-null}
    record end.json "$1"
}
find_checkpoint
resumed=${checkpoint_step:-null}
export HPC_LAUNCH_RESUME_FROM=$checkpoint HPC_LAUNCH_RESUME_NAME=${checkpoint##*/} HPC_LAUNCH_RESUME_STEP=$checkpoint_step
[ -z "$checkpoint" ] || say "resuming from $(printf %q "$checkpoint")"
