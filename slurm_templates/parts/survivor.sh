
# --- Survivor: end the job when Slurm has given up its first node ---
# With --no-kill, Slurm then keeps the job until its time limit, although nothing runs its script any more (seen with
# 22.05, 24.11 and 26.05), and the run's next job waits for its end. A small step on another node ends it.
end_without() { # FIRST_NODE ATTEMPT_FOLDER NEXT_ATTEMPT: on that node, until the next attempt has a step of its own
    local beat='' before='' quiet=0 left names
    echo "looks whether $1 is lost"
    until [ -s "$3/agent/survivor.log" ]; do
        sleep 15
        before=$beat
        read -r beat 2>/dev/null <"$2/agent/beat-0"
        [ "$beat" = "$before" ] || { quiet=0 && continue; } # the first node's watcher is alive
        [ -n "$beat" ] || [ "$((++quiet % 4))" -eq 0 ] || continue # it has none yet: ask Slurm once a minute
        left=$(timeout 20 squeue --noheader --jobs="$SLURM_JOB_ID" --states=RUNNING --format=%N) && [ -n "$left" ] &&
            names=$(scontrol show hostnames "$left") && [ -n "$names" ] || continue
        grep -qxF "$1" <<<"$names" || { echo "$1, which ran the job's script, is no longer in the job" && scancel "$SLURM_JOB_ID"; }
    done
}
start_survivor() {
    local others=() next body
    mapfile -t others < <(scontrol show hostnames "$SLURM_JOB_NODELIST" | grep -vxF "${hosts[0]}")
    others=("${hosts[@]:1}" "${others[@]}")
    [ -n "${others[0]:-}" ] && [ -z "${HPC_LAUNCH_IN_ALLOCATION:-}" ] || return 0
    printf -v next '%s/attempts/%03d' "$run_dir" "$((10#0${attempt_dir//*[!0-9]/} + 1))"
    printf -v body '%s\nend_without %q %q %q' "$(declare -f end_without)" "${hosts[0]}" "$attempt_dir" "$next"
    env -u SLURM_MEM_PER_CPU -u SLURM_MEM_PER_GPU HPC_LAUNCH_ATTEMPT_DIR='' srun --job-name=hpc-launch --overlap --mem=0 \
        --nodelist="${others[0]}" --nodes=1 --ntasks=1 bash -c "$body" </dev/null >"$attempt_dir/agent/survivor.log" 2>&1 &
}
start_survivor
