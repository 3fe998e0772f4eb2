#!/bin/bash
# One job of the spool folder: queue.sh FOLDER ATTEMPT DELAY LIMIT WARNED_BEFORE, in seconds. It waits until no earlier
# job lives, runs the script, and notes the states. While it lives it holds the lock, which is its standard input. The
# files `cancel` and `warn` ask it to do so.
cd -P -- "$1" || exit
attempt=$2 delay=$3 limit=$4 lead=$5 job='' ended_by=''
note() { # STATE [EXIT_CODE]
    printf '%s %(%s)T %s\n' "$1" -1 "${2:-}" >>state
}
first() { # the delay is over, and no earlier job lives that waits for no delay
    local other
    [ "$SECONDS" -ge "$delay" ] && rm -f delayed || return
    for other in ../*/lock; do
        other=${other#../}
        [ "${other%/lock}" -ge "${PWD##*/}" ] || [ -e "../${other%/lock}/delayed" ] || flock -n -s "../$other" true || return
    done 2>/dev/null
}
over() { # cancelled, or the spool folder was deleted
    [ -e cancel ] || [ ! -e lock ]
}
[ "$delay" -eq 0 ] || : >delayed
note PENDING
until over || first; do sleep 0.2; done
if ! over; then
    setsid bash "$attempt/script.sh" "$attempt" >>"$attempt/batch.log" 2>&1 </dev/null &
    job=$! began=$SECONDS
    note RUNNING
fi
while [ -n "$job" ] && kill -0 "$job" 2>/dev/null && [ -z "$ended_by" ]; do
    sleep 0.1
    if [ "$lead" -gt 0 ] && [ "$((SECONDS - began))" -ge "$((limit - lead))" ]; then : >warn && lead=0; fi
    if [ -e warn ]; then rm -f warn && kill -s USR1 "$job"; fi # the script alone
    [ "$limit" -eq 0 ] || [ "$((SECONDS - began))" -lt "$limit" ] || ended_by=TIMEOUT
    ! over || ended_by=CANCELLED
done
code=''
if [ -n "$job" ]; then # what it started ends with it, or ten seconds later
    kill -s TERM -- "-$job" 2>/dev/null
    for ((tenth = 0; tenth < 100; tenth++)); do
        kill -0 -- "-$job" 2>/dev/null || break
        sleep 0.1
    done
    kill -s KILL -- "-$job" 2>/dev/null
    wait "$job"
    code=$?
    [ -n "$ended_by" ] || [ "$code" -ne 0 ] || ended_by=COMPLETED
    ended_by=${ended_by:-FAILED}
fi
note "${ended_by:-CANCELLED}" "$code"
rm -f lock
