
# --- Notifications: what the job tells about itself (`notify:`) ---
# The address of the webhook leaves the environment here: programs such as trackers write that to their logs.
notify_address=''
if [ -n "$job_notify" ]; then
    notify_address=${!job_notify:-}
    [[ " ${job_secrets[*]:-} " = *" $job_notify "* ]] || unset -v "$job_notify"
fi
notify() ( # TASK ARGUMENT; in the background or under timeout: nothing waits for a receiver
    { set +x; } 2>/dev/null # it would show the address
    [ -O "$run_dir/hooks/agent.pyz" ] && python=$(command -v python3) || exit 0
    [ -z "$notify_address" ] || export "$job_notify=$notify_address"
    exec timeout -k 2 "$1" "$python" -I "$run_dir/hooks/agent.pyz" notify "$2" "$attempt_dir" "$3" </dev/null >/dev/null 2>&1
)
eval "first_$(declare -f call_after)"
call_after() { # EXIT_CODE
    { set +x; } 2>/dev/null
    [ -z "$notify_address" ] || export "$job_notify=$notify_address" # for the end hook and the job that it submits
    first_call_after "$1"
    notify 20 end "$1"
    [ -z "${notifier:-}" ] || kill "$notifier" 2>/dev/null
}
