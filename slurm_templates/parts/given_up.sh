
# --- Nodes that Slurm has taken out of the job ---
# With --no-kill the job goes on without them; of a step that needs them, srun says that it asks for too much.
if [ "$code" -ne 0 ] && [ ! -s "$attempt_dir/agent/lost" ]; then
    left=$(timeout 20 squeue --noheader --jobs="$SLURM_JOB_ID" --states=RUNNING --format=%N </dev/null) && [ -n "$left" ] &&
        left=$(scontrol show hostnames "$left") && [ -n "$left" ] &&
        lost=$(printf '%s\n' "${hosts[@]}" | grep -vxF "$left" | tr '\n' ' ') && [ -n "$lost" ] && {
        say "Slurm has taken ${lost% } out of the job"
        printf '%s\n' "${lost% }" >"$attempt_dir/agent/lost"
    }
fi
