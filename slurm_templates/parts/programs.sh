
# --- The interpreter that each node must have ---
# Without this check, a node that lacks the virtual environment would silently run its own python3.
program_paths=''
for name in "${job_programs[@]}"; do
    name=$(type -P "$name") && printf -v program_paths '%s %q' "$program_paths" "$name"
done
starts=on_each_node
declare -F on_each_node >/dev/null || starts=on_each_rank
body=$(declare -f "$starts")
eval "$starts() {
    local program
    for program in$program_paths; do
        [ -x \"\$program\" ] && continue
        printf '[hpc-launch] %s: %s is missing on this node\n' \"\${SLURMD_NODENAME:-\$(uname -n)}\" \"\$program\" >&2
        exit 1
    done
${body#*\{}"
