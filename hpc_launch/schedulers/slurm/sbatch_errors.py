"""Classify a failed sbatch as a refusal or an unknown outcome, by its output and exit code."""

from __future__ import annotations

import re

from hpc_launch.base.errors import NoContact, SchedulerError, SubmitRefused, SubmitUnknown
from hpc_launch.schedulers.slurm.run_command import NOT_HERE

_NO_ANSWER = re.compile(
    r"timed out|unable to contact|zero bytes were transmitted|standby|communication (connection|shutdown) failure"
    r"|(message|socket) (send|receive)|(send|receive) (failure|error)|connection (refused|reset)"
    r"|not connected|no route to host|network is (unreachable|down)|broken pipe|unexpected message|header lengths"
    r"|insane message|zero length message|message length|entire message|interrupted system call"
    r"|resource temporarily unavailable|temporarily unable|missing socket|protocol authentication error",
    re.IGNORECASE,
)
"""Communication errors of Slurm (src/common/slurm_errno.c) and the network: the request may have arrived."""

_REFUSAL = re.compile(
    r"batch job submission failed|allocation failure|^sbatch: (error|fatal)|(unrecognized|invalid) option"
)

_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"invalid account|account.*not permitted",
        "list your accounts: sacctmgr show assoc user=$USER format=account,partition,qos",
    ),
    (r"invalid partition", "list the partitions: sinfo -s"),
    (r"group not permitted", "choose a partition open to your groups and accounts; list them: sinfo -s"),
    (r"invalid qos", "list the QOS you may use: sacctmgr show assoc user=$USER format=account,qos"),
    (r"requested time limit", "list the limits: sinfo -o '%P %l'"),
    (
        r"accounting/QOS policy",
        "request fewer jobs, fewer nodes or less time; list your limits: sacctmgr show assoc user=$USER",
    ),
    (
        r"node configuration is not available|node count specification|memory specification|more processors",
        "request what the partition's nodes have: sinfo -o '%P %D %c %m %G'",
    ),
    (r"generic resource|\bgres\b", "list the cluster's GPU names: sinfo -o '%P %G'"),
    (r"invalid feature", "list the nodes' features: sinfo -o '%P %f'"),
    (r"dependency problem", "check the dependency: its job is unknown or can no longer satisfy it"),
    (r"reservation", "list the reservations: scontrol show reservation"),
    (r"(unrecognized|invalid) option", "list the options of this Slurm version: sbatch --help"),
    (r"configuration source|DNS SRV|fetch config", NOT_HERE),
    (
        r"authentication credential",
        "contact the site's support: clocks or munge keys differ between this host and slurmctld",
    ),
    (r"unable to open file", "put the script on a file system that this host can read"),
)
"""Hints for common refusals, by Slurm's messages (src/common/slurm_errno.c)."""


def classify(code: int, output: str, errors: str) -> SchedulerError:
    """The error for a submission that returned no job id.

    Only an explicit refusal is a SubmitRefused: anything else may have submitted a job.

    Args:
        code: Exit code of `timeout sbatch …`: 124 or above 128 if a signal ended it, negative if one ended timeout
            itself, 126 or 127 if sbatch could not be run.
        output: Stdout.
        errors: Stderr.
    """
    lines = [line.strip() for line in f"{output}\n{errors}".splitlines() if line.strip()]
    message = "\n".join(dict.fromkeys(_without_prefix(line) for line in lines))
    if code in {126, 127}:
        return SubmitRefused(f"cannot run sbatch: {message or 'command not found'}", NOT_HERE)
    if code < 0 or code == 124 or 128 < code <= 128 + 64:
        return SubmitUnknown(f"sbatch was killed before it answered\n{message}".strip())
    if any(_NO_ANSWER.search(line) for line in lines):
        return NoContact(f"Slurm did not confirm the submission: {_without_prefix(lines[-1])}")
    if code != 0 and any(_REFUSAL.search(line) for line in lines):
        # Keep everything: warnings and the site's own messages help, too.
        return SubmitRefused(f"Slurm rejected the job: {message}", _hint(message))
    return SubmitUnknown(f"sbatch exited with code {code} without a job id: {message or 'no output'}")


def _without_prefix(line: str) -> str:
    """A line of output without sbatch's prefixes."""
    line = re.sub(r"^sbatch: (error: |fatal: )?", "", line)
    return re.sub(r"^Batch job submission failed: ", "", line)


def _hint(message: str) -> str | None:
    return next((hint for pattern, hint in _HINTS if re.search(pattern, message, re.IGNORECASE)), None)
