
# --- Node check inside the image: its Python, its modules, its PyTorch ---
check_in_image() { # started by srun in the image, on each node
    local node=$SLURMD_NODENAME run=$HPC_LAUNCH_RUN_DIR
    (python_in_image -I "$run/hooks/agent.pyz" check "$HPC_LAUNCH_ATTEMPT_DIR" "$node" --inside \
        --master="$MASTER_ADDR" --port="$MASTER_PORT" "${job_check[@]}") ||
        printf '{"node":"%s","done":true,"part":"check-image"}\n' "$node"
    exit 0
}
start_inside() { # sets job_check, or starts a step
    local body
    if ! declare -F srun_image >/dev/null; then # each node's own check starts it
        { declare -f python_in_image; echo 'python_in_image "$@"'; } >"$attempt_dir/python-in-image.sh"
        job_check+=(--within="$attempt_dir/python-in-image.sh")
        return
    fi
    body=$(declare -p job_check && declare -f python_in_image check_in_image && echo check_in_image)
    check_step check-image "$body" srun_image --overlap --mem=0 & # beside the step that has the nodes' memory
    inside=$!
}
