
# --- Write the strategy's configuration ---
job_strategy_config >"$HPC_LAUNCH_STRATEGY_CONFIG" || die "cannot write $HPC_LAUNCH_STRATEGY_CONFIG"
