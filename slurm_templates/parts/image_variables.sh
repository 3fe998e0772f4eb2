
# --- Variables for the image: under a second name the job's value takes precedence over the image's ---
for job_variable in "${job_image_variables[@]}"; do
    [ -z "${!job_variable+set}" ] || export "$job_image_prefix$job_variable=${!job_variable}"
done
