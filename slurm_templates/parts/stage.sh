
# --- Copies on the nodes' own disks ---
# An archive is made once, unless there is one, and kept beside the run folders. Each node unpacks and tests its copy.
stage_agent=$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz stage_log=$attempt_dir/stage.log stage_folders=job_stage_folders
stage_limit=300 stage_time=300 # seconds: until an agent that does not move gives up, and for everything
stage_shards='' stage_functions=()
stage_store=${run_dir%/*}/.staged-$EUID
[ ! -e "$stage_store" ] || [ -O "$stage_store" ] || stage_store=$run_dir/.staged-$EUID # another user has taken the name
stage_within() { # SECONDS COMMAND...: give up even if the command cannot be killed; handle signals meanwhile
    local end=$((SECONDS + $1)) child
    shift
    "$@" &
    child=$!
    while kill -0 "$child" 2>/dev/null; do
        [ "$SECONDS" -lt "$end" ] || { kill -s TERM "$child" 2>/dev/null; return 124; }
        sleep 0.2
    done
    wait "$child"
}
stage_python=$(PATH=/usr/bin:/bin type -P python3 || type -P python3) || stage_python=''
stage_script() { # FILE RECORDS COMMAND OPTION...: what each node runs; with shards, each has a key of its own
    {
        declare -f "$stage_folders" "${stage_functions[@]}"
        printf '%s\nkey=%q\n' "$stage_folders" "$stage_key"
        if [ -n "$stage_shards" ]; then
            declare -p hosts 2>/dev/null
            # shellcheck disable=SC2016
            printf '%s\n' 'node=${HPC_LAUNCH_NODE:-0} # a node that Slurm has started has its place in `hosts`' \
                'for i in "${!hosts[@]}"; do [ "${hosts[i]}" != "${SLURMD_NODENAME:-}" ] || node=$i; done' 'key+=-$node'
        fi
        # shellcheck disable=SC2016
        printf 'record=%q/$(uname -n)${HPC_LAUNCH_NODE:+.$HPC_LAUNCH_NODE}\n%s %q -I -S %q stage' "$2" "${stage_functions[*]:0:1}" "$stage_python" "$stage_agent"
        printf ' %q' "${@:3}"
        # shellcheck disable=SC2016
        printf '%s "$key" "${folders[@]}"\nexit 0 # a failed step would count as a failure of the job\n' "${2:+ --record=\"\$record\" $(printf %q "$stage_store")}"
    } >"$1"
}
stage_pack() { # SOURCE OPTION...: sets stage_key, stage_archive and stage_way, or stage_reason
    stage_key='' stage_archive='' stage_way='' stage_reason="no answer in time"
    if [ -z "$stage_python" ] || [ ! -f "$stage_agent" ]; then
        stage_reason="no python3, or the job was not started by hpc-launch"
        return 1
    fi
    say "staging $1"
    stage_within $((stage_time + 30)) timeout -k 5 $((stage_time + 20)) "$stage_python" -I -S "$stage_agent" stage pack "$stage_store" "$@" \
        --limit="$stage_limit" >"$attempt_dir/stage.key" 2>>"$stage_log" </dev/null
    { read -r stage_key && IFS= read -r stage_archive && read -r stage_way; } <"$attempt_dir/stage.key"
    case $stage_key in
        '' | *[!0-9a-f]*)
            [ -z "$stage_key" ] || stage_reason=${stage_key#skipped - }
            stage_key=''
            return 1
            ;;
    esac
}
stage_counts() { # counts the nodes by what they said
    local how where more
    staged=0 reused=0 mounted=0 skipped=0 stage_reason="no answer in time"
    while read -r how where more; do
        case $how in
            staged) staged=$((staged + 1)) ;;
            reused) reused=$((reused + 1)) ;;
            mounted) mounted=$((mounted + 1)) ;;
            skipped)
                skipped=$((skipped + 1))
                stage_reason=$more
                ;;
        esac
    done <"$stage_log"
    stage_done=$((staged + reused + mounted))
}
before_start() { # COMMAND: run it on each node before the launcher
    local starts=on_each_node body
    declare -F "$starts" >/dev/null || starts=on_first_node
    body=$(declare -f "$starts")
    printf -v starts '%s() {\n    %s\n%s' "$starts" "$1" "${body#*\{}"
    eval "$starts"
}
stage_uses() { # FILE: on a node, sets stage_copy and others; fails if it has no copy
    { IFS= read -r stage_lock && IFS= read -r stage_copy && IFS= read -r stage_options && IFS= read -r stage_root; } 2>/dev/null <"$1" || return
    # Held until the training ends: a copy in use is not removed. One that was removed meanwhile had another lock.
    local lock
    { exec {lock}<"$stage_lock" && flock -s -w 5 "$lock" && [ "/dev/fd/$lock" -ef "$stage_lock" ]; } 2>/dev/null
}
