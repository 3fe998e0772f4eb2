
# --- Secrets, which come with the environment of the submission ---
for job_variable in "${job_secrets[@]}"; do
    [ -n "${!job_variable+set}" ] || die "the secret $job_variable did not reach the job"
done
