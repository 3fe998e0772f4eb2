
# --- Hold the hosts while the program uses them ---
# When a connection is lost, the program ends too.
hold_dir=$attempt_dir/hold
hold "$hold_dir" "${hosts[@]}"
held() { # whether each host is held
    local note count=0
    for note in "$hold_dir"/*.began; do
        [ ! -e "$note" ] || count=$((count + 1))
    done
    [ "$count" -eq "$job_nodes" ]
}
until held; do
    kill -0 "$holder" 2>/dev/null || die "not all hosts can be used; the program was not started"
    sleep 0.2
done
end_with_hosts() { # on another host than the first, what the program started ends as the program ends it
    while kill -0 "$holder" 2>/dev/null; do sleep 1; done
    [ ! -e "$hold_dir/over" ] || return
    : >"$attempt_dir/ending"
    kill -s TERM -- "${step[@]}" 2>/dev/null
    sleep 10
    kill -s KILL -- "${step[@]}" 2>/dev/null
}
let_hosts_go() { # sets `code` where a host was lost
    : >"$hold_dir/over"
    if kill -s TERM "$holder" 2>/dev/null; then
        wait "$holder"
    else
        wait "$holder"
        code=$?
    fi
}
