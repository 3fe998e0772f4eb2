
# --- The GPUs of a role, where others run on the same node ---
role_gpus() { # FIRST COUNT: of those that the job has there
    local name ids found=''
    for name in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK; do
        [ -n "${!name:-}" ] || continue
        found=yes
        IFS=, read -ra ids <<<"${!name}"
        ids=("${ids[@]:$1:$2}")
        printf -v "$name" '%s,' "${ids[@]}"
        export "$name=${!name%,}"
    done
    [ -n "$found" ] && return
    CUDA_VISIBLE_DEVICES=$(seq -s, "$1" "$(($1 + $2 - 1))")
    export CUDA_VISIBLE_DEVICES
}
node_functions+=(role_gpus)
