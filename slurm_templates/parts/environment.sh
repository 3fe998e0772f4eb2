
# --- Set up the environment ---
# Evaluated here and not called as a function, in which a `declare` of a sourced file would set a local variable.
job_body=$(declare -f job_environment)
job_body=${job_body#*\{}
umask "$job_umask"
eval "${job_body%\}}"
job_umask=$(umask)
umask go-w
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$HPC_LAUNCH_RUN_DIR/hooks" # for `import hpc_launch_hooks`
cd "$job_workdir" || die "no folder $(printf %q "$job_workdir")"
node_functions=(on_each_node) # what the script of a node consists of
! declare -F inside >/dev/null || { declare -f inside; echo 'inside "$@"'; } >"$attempt_dir/inside.sh" || die "cannot write $attempt_dir/inside.sh"
