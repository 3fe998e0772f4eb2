#!/bin/bash
# shellcheck disable=SC1091,SC2016,SC2034,SC2329
# A shell in the environment of torchrun on site gpuless, for `hpc-launch shell JOB.yaml`.
say() { printf '[hpc-launch] %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

# --- Folders that other users cannot replace ---
in_place() { # FOLDER [GROUP...]: fails if a user who is in none of these groups can put another folder in its place
    local path above place owner group mode
    case $1 in /*) ;; *) return 1 ;; esac
    place=$(cd -P -- "$1" && pwd -P) || return
    for path in "$1" "$place"; do
        while [ -n "$path" ]; do
            above=${path%/*}
            read -r owner mode < <(stat -L -c '%u %a' -- "${above:-/}") || return
            if (((8#$mode & 2) != 0)); then # everybody can create files there: the sticky bit and the owners count
                if (((8#$mode & 8#1000) == 0 || (owner != 0 && owner != UID))); then return 1; fi
                read -r owner group < <(stat -c '%u %g' -- "$path") || return
                if ((owner != 0 && owner != UID)) && { [ -L "$path" ] || [[ " ${*:2} " != *" $group "* ]]; }; then return 1; fi
            fi
            path=$above
        done
    done
}

# --- Private folders ---
private_folder() { # FOLDER: creates it; fails unless it is this user's own and no other user can replace it
    case $1 in /*) ;; *) return 1 ;; esac
    [ -d "$1" ] || (umask 077 && mkdir -p -- "$1" && chmod 700 -- "$1") || return # a default ACL would replace the umask
    if [ ! -O "$1" ] || [ -L "$1" ]; then return 1; fi
    chmod go-w -- "$1" || return # an older one, made with another umask
    in_place "$1"
}
private_caches() { # FOLDER VARIABLE=NAME...: caches below a private folder, where nobody chose another place for them
    local cache name
    private_folder "$1" || { printf '[hpc-launch] no folder %s for caches: libraries choose their own\n' "$1" >&2; return 0; }
    for cache in "${@:2}"; do
        name=${cache#*=} cache=${cache%%=*}
        [ -z "${!cache+set}" ] || continue
        if [ "$name" != triton ] && [ -n "${XDG_CACHE_HOME:-}" ]; then continue; fi # the others follow it
        [ ! -d "$HOME/.cache/$name/hub" ] || continue # models that the user has there, perhaps for nodes without internet
        export "$cache=$1/$name"
        [ "$cache" != HF_HOME ] || [ ! -f "$HOME/.cache/huggingface/token" ] || export HF_TOKEN_PATH=${HF_TOKEN_PATH-$HOME/.cache/huggingface/token}
    done
}

if [ -n "${HPC_LAUNCH_ALLOCATION:-}" ]; then # as salloc set them: a step has others, which are inputs of the next srun
    unset "${!SLURM_@}"
    eval "$HPC_LAUNCH_ALLOCATION"
    unset HPC_LAUNCH_ALLOCATION
fi
HPC_LAUNCH_RUN_DIR=/home/alice/runs/torchrun-by-hand HPC_LAUNCH_RESUME_FROM=''
attempt_dir=$HPC_LAUNCH_RUN_DIR/attempts/001 HPC_LAUNCH_JOB_ID=${SLURM_JOB_ID:-by-hand}
HPC_LAUNCH_ATTEMPT_DIR=$attempt_dir
job_environment() {
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export OMP_NUM_THREADS=16                                # cores of a node / processes on it
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
}
body=$(declare -f job_environment) # evaluated here: in a function, a `declare` of a sourced file would set a local variable
body=${body#*\{}
eval "${body%\}}"
unset -f job_environment
unset HPC_LAUNCH_RUN_DIR HPC_LAUNCH_RESUME_FROM HPC_LAUNCH_JOB_ID HPC_LAUNCH_ATTEMPT_DIR
cd /home/alice/project || die 'no folder /home/alice/project'
export PATH=$PATH:/opt/hpc-launch/bin # hpc-launch
[ "$#" -eq 0 ] || exec "$@"
PS1=\[torchrun' \h] \w \$ '
export PS1
if [ -t 0 ]; then exec bash --noprofile --norc -i; fi
exec bash --noprofile --norc
