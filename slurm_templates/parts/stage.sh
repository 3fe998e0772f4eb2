
# --- Copy the software to the nodes' own disks ---
# An archive of the environment is made once and kept beside the run folders. Each node unpacks and tests its copy; a
# node without one uses the original. Whatever fails here, the training starts.
stage_agent=$HPC_LAUNCH_RUN_DIR/hooks/agent.pyz stage_key='' stage_from=''
stage_store=${run_dir%/*}/.staged-$EUID stage_log=$attempt_dir/stage.log
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
stage_script() { # FILE WORD...: what each node runs
    {
        declare -f job_stage_folders
        printf 'job_stage_folders\n%q -I -S %q stage' "$stage_python" "$stage_agent"
        printf ' %q' "${@:2}"
        # shellcheck disable=SC2016
        printf ' "${folders[@]}"\nexit 0 # a failed step would count as a failure of the job\n'
    } >"$1"
}
stage_pack() { # sets stage_from and stage_key, or says why not
    local program only=()
    [ "$job_stage" = node ] || only=(--shared-only)
    stage_from=${HPC_LAUNCH_IMAGE:-}
    if [ -z "$stage_from" ]; then
        program=$(type -P "${HPC_LAUNCH_PYTHON:-python3}") || program=''
        stage_from=${program%/bin/*}
    fi
    if [ -z "$stage_python" ] || [ ! -f "$stage_agent" ]; then
        say "not staged: no python3, or the job was not started by hpc-launch"
        return 1
    fi
    if [ -n "${HPC_LAUNCH_IMAGE:-}" ] && [ ! -f "$stage_from" ]; then
        say "not staged: $stage_from is not a file"
        return 1
    fi
    say "staging $stage_from"
    stage_within 330 timeout -k 5 320 "$stage_python" -I -S "$stage_agent" stage pack "$stage_store" "$stage_from" \
        --limit=300 "${only[@]}" >"$attempt_dir/stage.key" 2>>"$stage_log" </dev/null
    read -r stage_key <"$attempt_dir/stage.key" || stage_key="skipped - no answer within 5 minutes"
    case $stage_key in
        '' | *[!0-9a-f]*)
            say "not staged: ${stage_key#skipped - }"
            stage_key=''
            return 1
            ;;
    esac
}
stage_report() { # counts the nodes by what they said
    local how where more staged=0 reused=0 reasons=()
    while read -r how where more; do
        case $how in
            staged) staged=$((staged + 1)) ;;
            reused) reused=$((reused + 1)) ;;
            skipped) reasons+=("$more") ;;
        esac
    done <"$stage_log"
    say "staged: copied to $staged nodes, reused on $reused; $((stage_count - staged - reused)) use the original"
    [ "$((staged + reused))" -eq "$stage_count" ] || say "not staged, see $stage_log: ${reasons[0]:-no answer in time}"
}
use_staged() { # KEY ORIGINAL: on a node, take the copy if there is one
    local root copy name value lock
    { IFS= read -r root <"$HPC_LAUNCH_ATTEMPT_DIR/staged/$(uname -n)"; } 2>/dev/null || return 0
    copy=$root/$1/copy
    # Held until the training ends: a copy in use is not removed. One that was removed meanwhile had another lock.
    { exec {lock}<"$root/$1.lock" && flock -s -w 5 "$lock" && [ "/dev/fd/$lock" -ef "$root/$1.lock" ]; } 2>/dev/null || return 0
    [ -O "$root/$1/complete" ] || return 0
    for name in VIRTUAL_ENV CONDA_PREFIX HPC_LAUNCH_PYTHON HPC_LAUNCH_IMAGE PATH LD_LIBRARY_PATH PYTHONPATH; do
        [ -n "${!name:-}" ] || continue
        value=:${!name}:
        value=${value//":$2/"/":$copy/"}
        value=${value//":$2:"/":$copy:"}
        value=${value#:}
        export "$name=${value%:}"
    done
}
enter stage
if stage_pack; then
    stage_broadcast
    mkdir -p "$attempt_dir/staged"
    stage_script "$attempt_dir/stage.sh" node --limit=300 --record="$attempt_dir/staged" "$stage_store" "$stage_key"
    stage_within 330 stage_on_nodes 320 "$attempt_dir/stage.sh" "$stage_log" || :
    stage_report
    starts=on_each_node
    body=$(declare -f "$starts")
    printf -v starts '%s() {\n    use_staged %q %q\n%s' "$starts" "$stage_key" "$stage_from" "${body#*\{}"
    eval "$starts"
    node_functions+=(use_staged)
fi
enter environment
