#!/bin/bash -l
# shellcheck disable=SC1091,SC2016,SC2034,SC2153,SC2329
# site-chain on site chain, started by hand: 2 hosts with 4 + 4 processes, by torchrun.
# Written by `hpc-launch config launcher --job`. Start it on each host within a few minutes:
#     n1: bash FILE 0
#     n2: bash FILE 1
set -o pipefail
say() { printf '[hpc-launch] %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }
hosts=(n1 n2) slots=(4 4) first_ranks=(0 4)
node=${1:-}
case $node in '' | *[!0-9]* | ?????*) node=2 ;; esac
((10#$node < 2)) || die "usage: bash $0 NODE_RANK: 0 to 1, the place of this host in: ${hosts[*]}"
node=$((10#$node))

# === Folders and variables of the run ===
run_dir=/home/alice/runs/site-chain-by-hand attempt_dir=$run_dir/attempts/001
(umask go-w && mkdir -p "$attempt_dir"/{logs,agent}) || die "cannot create $attempt_dir"
export HPC_LAUNCH_RUN_DIR=$run_dir HPC_LAUNCH_RUN_NAME=${run_dir##*/} HPC_LAUNCH_ATTEMPT_DIR=$attempt_dir HPC_LAUNCH_ATTEMPT=1
export HPC_LAUNCH_JOB_ID=by-hand HPC_LAUNCH_NODE=$node HPC_LAUNCH_STOP_FILE=$attempt_dir/stop HPC_LAUNCH_DONE_FILE=$attempt_dir/done
export HPC_LAUNCH_RESUME_FROM='' HPC_LAUNCH_RESUME_NAME='' HPC_LAUNCH_RESUME_STEP=''
export HPC_LAUNCH_CODE=/home/alice/project
export MASTER_ADDR=n1 MASTER_PORT=29500

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

# === Environment ===
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
cd /home/alice/project || die 'no folder /home/alice/project'
mkdir -p -- /tmp/proj1/x || die 'mkdir -p -- /tmp/proj1/x failed' # chain.yaml:40
mkdir -p -- "$SLURM_TMPDIR"/data || die 'mkdir -p -- $SLURM_TMPDIR/data failed' # chain.yaml:41
cp -R -- /scratch/proj1/data.tar "$SLURM_TMPDIR"/data || die 'cp -R -- /scratch/proj1/data.tar $SLURM_TMPDIR/data failed' # chain.yaml:41
private_folder /tmp/proj1-"$HPC_LAUNCH_JOB_ID" || die '/tmp/proj1-$HPC_LAUNCH_JOB_ID cannot be created, belongs to another user, or can be replaced by one' # chain.yaml:57
ulimit -s unlimited                                          # chain.yaml:38
ulimit -c 0                                                  # chain.yaml:38
export NODE_NAME="$SLURMD_NODENAME"                          # chain.yaml:50; third party, 2025-01-01

# === Start ===
exec python3 -m torch.distributed.run \
    --nnodes=2 --nproc-per-node="${slots[node]}" --node-rank="$node" \
    --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
    "$HPC_LAUNCH_CODE"/train.py \
        --data "$SLURM_TMPDIR"/data
