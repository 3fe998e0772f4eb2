
# --- No checkpoints ---
export HPC_LAUNCH_RESUME_FROM='' HPC_LAUNCH_RESUME_NAME='' HPC_LAUNCH_RESUME_STEP=''
saved_checkpoint() { :; }
