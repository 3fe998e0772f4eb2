
# --- Wait on a node for the launcher ---
await_child() { # PROCESS: sets `code`. Slurm may send TERM only to the first process of a task, which is this shell
    child=$1
    trap 'told=1; kill -s TERM "$child" 2>/dev/null' TERM
    while :; do # a trapped signal ends `wait` early
        told=
        wait "$child"
        code=$?
        [ -n "$told" ] || break
    done
}
await_and_note() { # PROCESS FILE: srun's exit code is useless after a lost node, so each other node notes its own
    await_child "$1"
    umask go-w
    printf '%d\n' "$code" >"$2"
    exit "$code"
}
node_functions+=(await_child await_and_note)
