
# --- Wait for the nodes by their notes ---
# Each command leaves a note when it begins and one with its exit code when it ends, as the starter's own exit code is
# not reliable.
ended_badly=''
look_at_notes() { # sets `began` and, by the oldest note of a failure, `ended_badly`
    local note code first=''
    began=0
    for note in "$attempt_dir"/logs/*.began; do
        [ ! -e "$note" ] || began=$((began + 1))
    done
    [ -z "$ended_badly" ] || return
    for note in "$attempt_dir"/logs/{rank,node}-*.exit; do
        [ -f "$note" ] || continue
        read -r code 2>/dev/null <"$note" || continue
        case $code in '' | 0 | *[!0-9]*) continue ;; esac
        [ -n "$first" ] && [ ! "$note" -ot "$first" ] || { first=$note && ended_badly=$code; }
    done
    [ -z "$first" ] || say "$(basename "$first" .exit) was the first to fail, with exit code $ended_badly"
    [ -z "$first" ] || : >"$attempt_dir/ending"
}
await_notes() { # BEGINNINGS node|rank ENDS GRACE: sets `code`; after a failure the others have GRACE seconds to end
    local ended note waited=0 bad_for=0
    while kill -0 "$starter" 2>/dev/null; do
        sleep 1
        look_at_notes
        if [ "$began" -ge "$1" ]; then
            rm -f "$environment"
        elif [ "$((++waited))" -eq 300 ]; then
            ended_badly=1
            say "after 5 minutes only $began of $1 have started"
        fi
        if [ -n "$ended_by" ] || { [ -n "$ended_badly" ] && [ "$((++bad_for))" -gt "$4" ]; }; then
            stop_all
        fi
    done
    wait "$starter"
    code=$?
    phase=ended
    say "$job_step ended with exit code $code"
    for _ in {1..60}; do # a file server may show other nodes' files late
        look_at_notes
        ended=0
        for note in "$attempt_dir/logs/$2"-*.exit; do
            [ ! -s "$note" ] || ended=$((ended + 1))
        done
        [ "$code" -eq 0 ] && [ -z "$ended_badly" ] && [ "$ended" -lt "$3" ] || break
        sleep 1
    done
    if [ "$code" -eq 0 ] && [ "$ended" -lt "$3" ]; then
        say "only $ended of $3 left an exit code"
        code=1
    fi
    # With ssh's own code the connection ended first, and then what ran there.
    [ -z "$ended_badly" ] || [ -n "$ended_by" ] || [ "$job_step $code" = "ssh 255" ] || code=$ended_badly
    [ -z "$ended_by" ] || [ "$code" -ne 0 ] || code=1
}
