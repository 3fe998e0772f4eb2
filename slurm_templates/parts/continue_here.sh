
# --- The next attempt in the same job ---
# The end hook prepares it, if the job has time and nodes for it. What is left of this attempt is ended first: its
# processes may still write checkpoints. Then this shell becomes that attempt's script, with the environment that the
# job began with.
first_umask=$job_umask first_folder=$PWD
continue_here() { # start the attempt that the end hook prepared for this job, if it did
    local next job_environ=()
    printf -v next '%s/attempts/%03d' "$run_dir" "$((10#0${attempt_dir//*[!0-9]/} + 1))"
    grep -qs "\"job_id\": \"$job_id\"" "$next/job.json" || return
    say "the run continues in this job, in $next"
    if ! clean_nodes; then
        (set -o noclobber; printf 'void never submitted: processes of attempt %s may be left\n' "${attempt_dir##*/}" >"$next/claim") 2>/dev/null
        run_hook "$next"
        return
    fi
    mapfile -d '' -t job_environ <"/proc/$$/environ" # as this job began
    exec >>"$next/batch.log" 2>&1
    umask "$first_umask"
    cd "$first_folder" || cd /
    set -- "$BASH" "$next/script.sh" "$next" "$first_step" "$HPC_LAUNCH_END_TIME"
    ! shopt -q login_shell || set -- "$1" -l "${@:2}"
    for job_variable in $(compgen -e); do unset -v "$job_variable"; done 2>/dev/null
    for job_variable in "${job_environ[@]}"; do
        [[ ! $job_variable =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || export "${job_variable?}" 2>/dev/null
    done
    trap - USR1 TERM INT HUP
    exec "$@"
}
clean_nodes() { # end what is left of this attempt on each node; sets first_step
    local answers count=$SLURM_JOB_NUM_NODES reached=() lost='' host
    if [ -n "${job_spares:-}" ]; then
        [ ! -f "$attempt_dir/agent/lost" ] || lost=$(<"$attempt_dir/agent/lost") # out of reach; and what Slurm has given up:
        lost+=" $(timeout 10 sinfo --noheader --Node --nodes="$nodes" --states=down --format=%N | tr '\n' ' ')"
        [ -z "${lost// /}" ] || sleep 3 # it may only be cut off: its watcher, if that sees the verdict, ends its ranks first
        for host in "${hosts[@]}"; do [[ " $lost " = *" $host "* ]] || reached+=("$host"); done
        count=${#reached[@]}
        reached=(--nodelist="$(IFS=, && printf '%s' "${reached[*]}")")
    fi
    # Without this attempt's folder in their environment: these processes are not what is left of it.
    # --overlap --mem=0: a step that has lost a node keeps what it has until Slurm gives the node up.
    answers=$(env -u SLURM_MEM_PER_CPU -u SLURM_MEM_PER_GPU HPC_LAUNCH_ATTEMPT_DIR='' timeout -k 5 60 srun --job-name=hpc-launch --overlap --mem=0 \
        "${reached[@]}" --nodes="$count" --ntasks="$count" --ntasks-per-node=1 \
        python3 -I "$run_dir/hooks/agent.pyz" job_processes end "$attempt_dir" </dev/null)
    [ "$(grep -c ' none$' <<<"$answers")" -eq "$count" ] ||
        { say "not all nodes are free of attempt ${attempt_dir##*/}: ${answers:-no answer}"; return 1; }
    read -r first_step _ < <(grep ' none$' <<<"$answers")
    first_step=$((10#0${first_step//[!0-9]/} + 1))
}
