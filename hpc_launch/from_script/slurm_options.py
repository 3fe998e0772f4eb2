"""The options of sbatch and srun that scripts use: their long names, and which have a value (sbatch(1), srun(1))."""

from __future__ import annotations

from hpc_launch.from_script.option_words import OptionTable

_SHORT = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task",
    "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "h": "help",
    "I": "immediate", "i": "input", "J": "job-name", "k": "no-kill", "K": "kill-on-bad-exit", "L": "licenses",
    "l": "label", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks", "O": "overcommit",
    "o": "output", "p": "partition", "Q": "quiet", "q": "qos", "r": "relative", "S": "core-spec",
    "s": "oversubscribe", "T": "threads", "t": "time", "u": "unbuffered", "v": "verbose", "W": "wait",
    "w": "nodelist", "X": "disable-status", "x": "exclude",
}  # fmt: skip
_VALUED = (
    "account array extra-node-info begin constraint cpus-per-task chdir dependency error nodefile gpus input "
    "job-name licenses clusters distribution nodes ntasks output partition qos relative core-spec threads time "
    "nodelist exclude acctg-freq batch bb bbf cluster-constraint comment container container-id cores-per-socket "
    "cpu-freq cpus-per-gpu deadline delay-boot export export-file gid gpu-bind gpu-freq gpus-per-node "
    "gpus-per-socket gpus-per-task gres gres-flags hint mail-type mail-user mcs-label mem mem-bind mem-per-cpu "
    "mem-per-gpu mincpus network ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket tasks-per-node "
    "open-mode power prefer priority profile reservation segment signal sockets-per-node switches thread-spec "
    "threads-per-core time-min tmp tres-bind tres-per-task uid wait-all-nodes wckey cpu-bind mpi task-prolog "
    "task-epilog het-group slurmd-debug bcast epilog prolog container-image container-mounts container-workdir "
    "container-name container-save container-env environment"
)
_FLAGS = (
    "hold help no-kill label overcommit quiet unbuffered verbose disable-status contiguous exclusive get-user-env "
    "ignore-pbs kill-on-invalid-dep no-requeue oversubscribe overlap exact parsable propagate reboot requeue "
    "spread-job stepmgr test-only usage use-min-nodes wait kill-on-bad-exit immediate nice multi-prog pty "
    "preserve-env send-libs whole resv-ports wait-for-children container-mount-home no-container-mount-home "
    "container-writable container-readonly container-remap-root no-container-remap-root no-container-entrypoint "
    "container-entrypoint"
)
SBATCH = OptionTable(frozenset(_VALUED.split()), frozenset(_FLAGS.split()), _SHORT)
SRUN = OptionTable(
    frozenset(_VALUED.split()) | {"wait", "jobid", "job-id", "relative", "accel-bind", "multi"},
    frozenset(_FLAGS.split()) - {"wait"},
    {**_SHORT, "E": "preserve-env"},
)
