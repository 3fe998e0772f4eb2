
# --- Private folders ---
private_folder() { # FOLDER: creates it; fails unless it is this user's own and no other user can replace it
    case $1 in /*) ;; *) return 1 ;; esac
    [ -d "$1" ] || (umask 077 && mkdir -p -- "$1" && chmod 700 -- "$1") || return # a default ACL would replace the umask
    if [ ! -O "$1" ] || [ -L "$1" ]; then return 1; fi
    chmod go-w -- "$1" || return # an older one, made with another umask
    in_place "$1"
}
private_caches() { # FOLDER VARIABLE=NAME...: caches below a private folder, where nobody chose another place for them
    local cache name
    private_folder "$1" || { printf '[hpc-launch] no folder %s for caches: libraries choose their own\n' "$1" >&2; return 0; }
    for cache in "${@:2}"; do
        name=${cache#*=} cache=${cache%%=*}
        [ -z "${!cache+set}" ] || continue
        if [ "$name" != triton ] && [ -n "${XDG_CACHE_HOME:-}" ]; then continue; fi # the others follow it
        [ ! -d "$HOME/.cache/$name/hub" ] || continue # models that the user has there, perhaps for nodes without internet
        export "$cache=$1/$name"
        [ "$cache" != HF_HOME ] || [ ! -f "$HOME/.cache/huggingface/token" ] || export HF_TOKEN_PATH=${HF_TOKEN_PATH-$HOME/.cache/huggingface/token}
    done
}
