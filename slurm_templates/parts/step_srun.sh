
# --- Start the nodes by srun, and wait for their end ---
phase=training
cpus=${SLURM_CPUS_PER_TASK:-${job_cpus_per_task:-}}
[ -z "${HPC_LAUNCH_IN_ALLOCATION:-}" ] || cpus=${job_cpus_per_task:-} # the allocation may have another shape
messages=/proc/$$/fd/2 skip=0 # what srun will write to the job's output, if that is a file
[ ! -f "$messages" ] || skip=$(stat -Lc %s "$messages")
start_nodes &
step=($!)
if declare -F watch_beats >/dev/null; then watch_beats "${step[0]}" & fi
while :; do # a trapped signal ends `wait` early, with a code that is not srun's
    interrupted=
    wait "${step[0]}"
    code=$?
    [ -n "$interrupted" ] || break
done
phase=ended
started_logs=("$attempt_dir"/logs/node-*.log)
if [ "$code" -eq 0 ] && [ ! -e "${started_logs[0]}" ]; then
    say "srun ended with exit code 0, but started nothing"
    code=1
fi
