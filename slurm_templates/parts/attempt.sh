
# --- Attempt folder ---
attempt_dir=${1:-}
if [ -z "$attempt_dir" ]; then # started by hand, not by `hpc-launch submit`
    attempt_dir=$job_by_hand-$job_id/attempts/001
    mkdir -p "$attempt_dir"
fi
run_dir=${attempt_dir%/attempts/*}
