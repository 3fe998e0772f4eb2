#!/bin/bash
# shellcheck disable=SC2016
# bound-node on site bound: a job array of a sweep. Each task runs the script of one point.
# Written by hpc-launch 0.1.0. Comments name sources.

# === Slurm options ===
#SBATCH --job-name=bound-node                                # bound_node.yaml:2
#SBATCH --partition=gpu                                      # bound.yaml:5
#SBATCH --nodes=2                                            # bound_node.yaml:3
#SBATCH --ntasks-per-node=1                                  # one task per node: torchrun starts the rest
#SBATCH --cpus-per-task=64                                   # bound.yaml:4
#SBATCH --gpus-per-node=4                                    # bound.yaml:4
#SBATCH --no-requeue                                         # hpc-launch resubmits; Slurm must not requeue
#SBATCH --open-mode=append                                   # keep the log across requeues
#SBATCH --output=bound-node-%j.out                           # for manual starts; `submit` logs to the run folder

# === The point of this task ===
# $1 is the array's folder. A line of its file `tasks` names the point and the attempt of a task, and what stands for the
# marks in the files of the attempt (template-K/).
say() { printf '[hpc-launch] %s\n' "$*"; }
end() { say "$*. Nothing was started."; exit 75; }
chmod go-w "$1/$SLURM_ARRAY_TASK_ID.log" 2>/dev/null # a line of a teammate could pass for one of Slurm's
[ ! -e "$1/claim" ] || end "this array was abandoned: $(<"$1/claim")"
read -r task point number template values < <(grep "^$SLURM_ARRAY_TASK_ID " "$1/tasks") ||
    end "cannot find the point of task $SLURM_ARRAY_TASK_ID in $1"
sweep=${1%/arrays/*}
run=$sweep/${sweep##*/}.$point
attempt=$run/attempts/$number
begin() { # as `begin_attempt` in array_tasks.py does for who looks earlier
    umask 022
    mkdir -p "$run"
    ln "$sweep/after.sh" "$run/after.sh" 2>/dev/null || cp -n "$sweep/after.sh" "$run/after.sh"
    for name in hooks code; do
        [ ! -d "$sweep/$name" ] || ln -sn "../$name" "$run/$name" 2>/dev/null
    done
    local draft=$run/attempts/.$SLURM_JOB_ID text value
    mkdir -p "$draft" || return
    for name in intent.json plan.json script.sh; do
        text=$(<"$1/template-$template/$name") || return
        for value in "HPC_LAUNCH_TASK_NUMBER_=$task" $values; do
            text=${text//"${value%%=*}"/"${value#*=}"}
        done
        printf '%s\n' "$text" >"$draft/$name" || return
    done
    chmod 755 "$draft/script.sh"
    ln -s "../../../${1#"$sweep/"}/$task.log" "$draft/batch.log"
    mv -T "$draft" "$attempt" 2>/dev/null || rm -rf "$draft"
}
[ -d "$attempt" ] || (begin "$1")
grep -qsF "\"$SLURM_JOB_NAME\"" "$attempt/intent.json" || end "attempt ${number#00} of point $point is another job's, or cannot be written"
exec bash "$attempt/script.sh" "$attempt"
