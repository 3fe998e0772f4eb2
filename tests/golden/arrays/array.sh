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
# $1 is the folder with a link for each task to the attempt that it runs.
say() { printf '[hpc-launch] %s\n' "$*"; }
if [ -e "$1/claim" ]; then
    say "this array was abandoned: $(<"$1/claim"). Nothing was started."
    exit 75
fi
if ! attempt=$(cd -P -- "$1/$SLURM_ARRAY_TASK_ID" && pwd); then
    say "cannot find the point of task $SLURM_ARRAY_TASK_ID in $1. Nothing was started."
    exit 75
fi
exec bash "$attempt/script.sh" "$attempt"
