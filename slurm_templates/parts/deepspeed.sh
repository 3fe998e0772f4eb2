
# --- Exit codes of DeepSpeed's processes ---
# DeepSpeed's launcher ends with 0 when a signal kills it, so each rank notes how it ended.
run_rank() {
    local note=$HPC_LAUNCH_ATTEMPT_DIR/logs/rank-${RANK:?}.exit code
    on_each_rank "$@" 2>&1 | sed -u "s/^/[rank$RANK]: /"
    code=${PIPESTATUS[0]}
    umask go-w
    printf '%d\n' "$code" >"$note"
    exit "$code"
}
await_ranks() { # PROCESS FIRST_RANK PROCESSES
    local rank
    await_child "$1"
    for ((rank = $2; rank < $2 + $3; rank++)); do
        [ "$code" -eq 0 ] || break # not in (( )), which would evaluate what the file holds
        code=1
        [ ! -f "$HPC_LAUNCH_ATTEMPT_DIR/logs/rank-$rank.exit" ] || read -r code <"$HPC_LAUNCH_ATTEMPT_DIR/logs/rank-$rank.exit"
        case $code in '' | *[!0-9]*) code=1 ;; esac
    done
    [ "$code" -eq 0 ] || : >"$HPC_LAUNCH_ATTEMPT_DIR/ending"
    exit "$code"
}
node_functions+=(await_ranks)
{ printf '#!/bin/bash\n'; declare -f on_each_rank run_rank; printf 'run_rank "$@"\n'; } >"$attempt_dir/rank.sh"
chmod +x "$attempt_dir/rank.sh" || die "cannot write $attempt_dir/rank.sh"
