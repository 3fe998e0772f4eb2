
# --- The interpreter that every node must have ---
# Without this check, a node that lacks the virtual environment would silently run its own python3.
program_paths=''
for name in "${job_programs[@]}"; do
    printf -v program_paths '%s %q' "$program_paths" "$(type -P "$name")"
done
has_all() { # PROGRAM...
    local program
    for program in "$@"; do
        if [ -n "$program" ] && [ ! -x "$program" ]; then
            printf '[hpc-launch] %s: %s is missing on this node\n' "${SLURMD_NODENAME:-$(uname -n)}" "$program" >&2
            return 1
        fi
    done
}
eval "has_programs() { has_all$program_paths; }"
node_functions+=(has_all has_programs)
