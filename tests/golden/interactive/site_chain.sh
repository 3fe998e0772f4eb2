#!/bin/bash
# shellcheck disable=SC1091,SC2016,SC2034,SC2329
# A shell in the environment of site-chain on site chain, for `hpc-launch shell JOB.yaml`.
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
HPC_LAUNCH_RUN_DIR=/home/alice/runs/site-chain-by-hand HPC_LAUNCH_RESUME_FROM=''
attempt_dir=$HPC_LAUNCH_RUN_DIR/attempts/001 HPC_LAUNCH_JOB_ID=${SLURM_JOB_ID:-by-hand}
HPC_LAUNCH_ATTEMPT_DIR=$attempt_dir
job_environment() {
    module --force purge                                     # test-fabric.yaml:17
    # shellcheck source=/dev/null
    . /etc/profile.d/modules.sh || die 'cannot source /etc/profile.d/modules.sh' # chain.yaml:32
    module use /appl/modules || die 'module use /appl/modules failed' # chain.yaml:33
    module load lumi || die 'module load lumi failed'        # chain.yaml:34
    module load 'rocm/6.2 beta' || die 'module load rocm/6.2 beta failed' # chain.yaml:34
    export SITE_ROOT='/opt/a b'                              # chain.yaml:35; its modules want it
    unset PYTHONPATH                                         # chain.yaml:36
    export LD_LIBRARY_PATH="$CRAY_LIBRARY_PATH""${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" # chain.yaml:37
    ulimit -s unlimited || die 'ulimit -s unlimited failed'  # chain.yaml:38
    ulimit -c 0 || die 'ulimit -c 0 failed'                  # chain.yaml:38
    mkdir -p -- /scratch/proj1/logs || die 'mkdir -p -- /scratch/proj1/logs failed' # chain.yaml:39
    private_folder /scratch/proj1/hf || die '/scratch/proj1/hf cannot be created, belongs to another user, or can be replaced by one' # chain.yaml:56
    module load Stages/2026 || die 'module load Stages/2026 failed' # test-centre.yaml:18
    module load GCC/13 || die 'module load GCC/13 failed'    # test-centre.yaml:18
    module load site-tools || die 'module load site-tools failed' # chain.yaml:59
    module load mine || die 'module load mine failed'        # site_chain.yaml:9
    export PYTHONUNBUFFERED=1                                # a line of the log appears when it is printed
    export PYTHONFAULTHANDLER=1                              # stacks of all threads at a fatal signal
    export TORCH_NCCL_TRACE_BUFFER_SIZE=2000                 # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DUMP_ON_TIMEOUT=1                      # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-rank- # NCCL's last collectives, at a timeout
    export TORCH_NCCL_DEBUG_INFO_PIPE_FILE="$HPC_LAUNCH_ATTEMPT_DIR"/agent/nccl-ask- # NCCL's last collectives, at a timeout
    export OMP_NUM_THREADS=24                                # cores of a node / processes on it
    export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: ' # names the rank of each line
    export NCCL_SOCKET_IFNAME=hsn                            # test-fabric.yaml:7
    export NCCL_IB_HCA='=mlx5_0,mlx5_1'                      # chain.yaml:19
    export NCCL_NET='Test Net'                               # test-fabric.yaml:7
    export HF_HOME=/scratch/proj1/hf                         # chain.yaml:56
    export MIOPEN_USER_DB_PATH=/tmp/proj1-"$HPC_LAUNCH_JOB_ID" # chain.yaml:57
    export MIOPEN_CUSTOM_CACHE_DIR=/tmp/proj1-"$HPC_LAUNCH_JOB_ID" # chain.yaml:57
    export FI_RDZV=alt_read                                  # test-fabric.yaml:9
    export NCCL_CROSS_NIC=1                                  # test-fabric.yaml:10
    export FI_RX=software                                    # chain.yaml:45; third party, 2025-01-01; hangs otherwise
    export NCCL_PROTO='^LL128'                               # chain.yaml:47; third party, 2025-01-01
    export NODE_CLASS=h100                                   # chain.yaml:20
    export FI_SIZE=1024                                      # chain.yaml:29; this queue is small
    export QUIET=1                                           # test-centre.yaml:15
    export STACK=2026                                        # test-centre.yaml:19
    export OMP_PROC_BIND=true                                # site_chain.yaml:8
}
body=$(declare -f job_environment) # evaluated here: in a function, a `declare` of a sourced file would set a local variable
body=${body#*\{}
eval "${body%\}}"
unset -f job_environment
unset HPC_LAUNCH_RUN_DIR HPC_LAUNCH_RESUME_FROM HPC_LAUNCH_JOB_ID HPC_LAUNCH_ATTEMPT_DIR
cd /home/alice/project || die 'no folder /home/alice/project'
export PATH=$PATH:/opt/hpc-launch/bin # hpc-launch
[ "$#" -eq 0 ] || exec "$@"
PS1=\[site-chain' \h] \w \$ '
export PS1
if [ -t 0 ]; then exec bash --noprofile --norc -i; fi
exec bash --noprofile --norc
