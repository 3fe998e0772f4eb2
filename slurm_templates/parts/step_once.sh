
# --- Start the program on the first node, and wait for its end ---
[ -z "${job_interfaces[0]:-}" ] || export NCCL_SOCKET_IFNAME="=${job_interfaces[0]}" GLOO_SOCKET_IFNAME=${job_interfaces[0]}
{ declare -p job_umask; declare -f on_first_node "${node_functions[@]}"; echo 'umask "$job_umask" && on_first_node'; } >"$attempt_dir/node.sh" || die "cannot write $attempt_dir/node.sh"
[ -z "${job_copies+set}" ] || copy_to_hosts
phase=training
# bash lets what runs in the background ignore these signals (bash(1), SIGNALS), and so would the program.
(trap - INT QUIT && exec setsid bash "$attempt_dir/node.sh") >>"$attempt_dir/logs/node-0.log" 2>&1 </dev/null &
program=$!
step=("-$program") # and all that it started: a launcher need not forward a signal
if declare -F end_with_hosts >/dev/null; then end_with_hosts & fi
while :; do # a trapped signal ends `wait` early, with a code that is not the program's
    interrupted=
    wait "$program"
    code=$?
    [ -n "$interrupted" ] || break
done
phase=ended
if declare -F let_hosts_go >/dev/null; then let_hosts_go; fi
say "the program ended with exit code $code"
[ -z "${job_copies+set}" ] || fetch_the_rest
