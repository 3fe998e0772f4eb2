
# --- A command that notes its beginning and its exit code ---
run_noted() { # MARK: on_each_node, with its output in MARK.log
    local mark=$1 child code asked=''
    if ! (set -o noclobber; uname -n >"$mark.began") 2>/dev/null; then
        echo "$job_step started ${mark##*/} twice, or cannot write $mark.began" >&2
        exit 1
    fi
    exec >>"$mark.log" 2>&1 </dev/null
    trap 'asked=1; kill -s TERM "$child" 2>/dev/null' TERM INT HUP
    (trap - INT QUIT && umask "$job_umask" && on_each_node) & # bash lets what runs in the background ignore these
    child=$!
    while :; do # a trapped signal ends `wait` early
        wait "$child"
        code=$?
        [ -n "$asked" ] || break
        asked=''
    done
    printf '%d\n' "$code" >"$mark.exit"
    exit "$code"
}
