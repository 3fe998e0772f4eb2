
# --- Wait for processes: when one fails the others are ended too, as with srun ---
end_together() { # NAME PAUSE: the processes of `step`, by number; sets `code`, that of the first failure
    local number its
    code=0
    while [ "${#step[@]}" -gt 0 ]; do
        sleep "$2"
        for number in "${!step[@]}"; do
            kill -0 "${step[number]}" 2>/dev/null && continue
            wait "${step[number]}"
            its=$?
            unset "step[number]"
            if [ "$its" -ne 0 ] && [ "$code" -eq 0 ]; then
                code=$its
                say "$1 $number ended with exit code $code"
                : >"$HPC_LAUNCH_ATTEMPT_DIR/ending"
                kill -s TERM "${step[@]}" 2>/dev/null
            fi
        done
    done
}
