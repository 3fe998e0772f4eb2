
# --- Attempt folder ---
attempt_dir=${1:-}
if [ -z "$attempt_dir" ]; then # started by hand, not by `hpc-launch submit`
    run_dir=$job_by_hand-$job_id attempt_dir=$run_dir/attempts/001
    [ -d "${run_dir%/*}" ] || { mkdir -p "${run_dir%/*}" && chmod go-w "${run_dir%/*}"; }
    mkdir -m 755 "$run_dir" 2>/dev/null && setfacl -k "$run_dir" 2>/dev/null # a default ACL would replace the umask
    # Others may guess the name. After a requeue the folder is this job's own.
    for folder in "$run_dir" "$run_dir/attempts" "$attempt_dir"; do
        { [ -d "$folder" ] || mkdir "$folder"; } && [ -n "$(find "$folder" -maxdepth 0 -type d -uid "$EUID" ! -perm /022)" ] ||
            die "cannot use $folder: it cannot be created, or other users can change it"
    done
    in_place "$run_dir" "${GROUPS[@]}" || die "cannot use $run_dir: another user can replace it or a folder above it"
fi
run_dir=${attempt_dir%/attempts/*}
