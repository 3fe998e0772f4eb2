
# --- Claim ---
# Only one job may run an attempt: the one that creates `claim`. Without this, a submission that was abandoned and
# repeated could train twice.
if ! (set -o noclobber; printf '%s\n' "$job_id" >"$attempt_dir/claim") 2>/dev/null; then
    owner=$(cat "$attempt_dir/claim" 2>/dev/null) || owner="nobody: cannot write to $attempt_dir"
    if [ "$owner" != "$job_id" ]; then
        say "this attempt is not for job $job_id but for: $owner. Nothing was started."
        exit 75
    fi
fi
mkdir -p "$attempt_dir"/{logs,agent/stacks} || die "cannot write to $attempt_dir"
