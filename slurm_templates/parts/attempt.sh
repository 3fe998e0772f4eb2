
# --- Attempt folder ---
attempt_dir=${1:-}
if [ -z "$attempt_dir" ]; then # started by hand, not by `hpc-launch submit`
    run_dir=$job_by_hand-$job_id attempt_dir=$run_dir/attempts/001
    mkdir -p "${run_dir%/*}"
    # Others may guess the name. After a requeue the folder is this job's own.
    mkdir "$run_dir" 2>/dev/null || [ -n "$(find "$run_dir" -maxdepth 0 -type d -uid "$EUID" ! -perm /022)" ] ||
        die "cannot use $run_dir: it cannot be created, or other users can change it"
    mkdir -p "$attempt_dir"
fi
run_dir=${attempt_dir%/attempts/*}
