
# --- Hand the environment to the nodes ---
# In a file that nobody else can read and that is removed once all nodes have read it: pdsh passes on little of the
# environment, on command lines; what an MPI passes on differs.
environment=$attempt_dir/environment
trap 'code=$?; rm -f "$environment"; at_exit "$code"' EXIT
(
    umask 077
    exec >"$environment" && chmod 600 "$environment" || exit
    printf 'cd %q || exit\n' "$PWD"
    for name in $(compgen -e); do
        case $name in # what each node, or what starts its processes, knows better
            SLURM_PROCID | SLURM_LOCALID | SLURM_NODEID | SLURM_GTIDS | SLURM_TASK_PID | SLURM_STEP* | SLURMD_NODENAME) continue ;;
            SLURM_CPU_BIND* | HOSTNAME | PWD | OLDPWD | SHLVL | _ | SSH_* | XDG_SESSION_* | XDG_RUNTIME_DIR) continue ;;
            OMPI_COMM_* | PMI_* | PMIX_* | MV2_COMM_* | MPI_LOCAL*) continue ;;
            CUDA_VISIBLE_DEVICES | HIP_VISIBLE_DEVICES | ROCR_VISIBLE_DEVICES | ZE_AFFINITY_MASK | GPU_DEVICE_ORDINAL)
                [[ ",${job_gpu_variables:-}," = *",$name,"* ]] || continue ;; # unless the job sets it
        esac
        printf 'export %s=%q\n' "$name" "${!name}"
    done
) || die "cannot write $environment"
