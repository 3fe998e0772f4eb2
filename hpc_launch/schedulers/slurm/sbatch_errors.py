"""Tells a refused submission from one whose outcome is open, by what sbatch printed and how it ended."""

from __future__ import annotations

import re

from hpc_launch.base.errors import SchedulerError, SubmitRefused, SubmitUnknown
from hpc_launch.schedulers.slurm.run_command import NOT_HERE

_NO_ANSWER = re.compile(
    r"timed out|unable to contact|zero bytes were transmitted|standby|communication (connection|shutdown) failure"
    r"|(message|socket) (send|receive)|(send|receive) (failure|error)|connection (refused|reset)"
    r"|not connected|no route to host|network is (unreachable|down)|broken pipe|unexpected message|header lengths"
    r"|insane message|zero length message|message length|entire message|interrupted system call"
    r"|resource temporarily unavailable|temporarily unable|missing socket|protocol authentication error",
    re.IGNORECASE,
)
"""Slurm's communication errors (src/common/slurm_errno.c) and those of the network: the request may have arrived."""

_REFUSAL = re.compile(
    r"batch job submission failed|allocation failure|^sbatch: (error|fatal)|(unrecognized|invalid) option"
)

_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"invalid account|account.*not permitted",
        "see your accounts: sacctmgr show assoc user=$USER format=account,partition,qos",
    ),
    (r"invalid partition", "see the partitions: sinfo -s"),
    (r"group not permitted", "this partition is for other groups or accounts; sinfo -s lists them all"),
    (r"invalid qos", "see what you may use: sacctmgr show assoc user=$USER format=account,qos"),
    (r"requested time limit", "see the limits: sinfo -o '%P %l'"),
    (
        r"accounting/QOS policy",
        "too many jobs, too many nodes or too long for your account or QOS; see sacctmgr show assoc user=$USER",
    ),
    (
        r"node configuration is not available|node count specification|memory specification|more processors",
        "no node of the partition has what the job asks for; see sinfo -o '%P %D %c %m %G'",
    ),
    (r"generic resource|\bgres\b", "see how this cluster names its GPUs: sinfo -o '%P %G'"),
    (r"invalid feature", "see the features of the nodes: sinfo -o '%P %f'"),
    (r"dependency problem", "the job that this one waits for is unknown, or cannot satisfy it any more"),
    (r"reservation", "see the reservations: scontrol show reservation"),
    (r"(unrecognized|invalid) option", "see the options that this version knows: sbatch --help"),
    (r"configuration source|DNS SRV|fetch config", NOT_HERE),
    (r"authentication credential", "the clocks or munge keys of this host and the controller differ: tell the support"),
    (r"unable to open file", "the script must be on a file system that this host sees"),
)
"""What to do about the common refusals (Slurm's texts from src/common/slurm_errno.c)."""


def no_answer(line: str) -> bool:
    """Whether a command's last word is that of a controller that gave none: what was asked may have been done."""
    return _NO_ANSWER.search(line) is not None


def classify(code: int, output: str, errors: str) -> SchedulerError:
    """The error for a submission without a job id.

    Args:
        code: The exit code of `timeout sbatch …`: 124 or over 128 when a signal ended it, negative when one ended
            timeout itself, 126 and 127 when sbatch could not be run.
        output: What was printed to stdout.
        errors: What was printed to stderr.

    Only a refusal in so many words is a SubmitRefused: everything else may have submitted a job.
    """
    lines = [line.strip() for line in f"{output}\n{errors}".splitlines() if line.strip()]
    said = "\n".join(dict.fromkeys(_own_words(line) for line in lines))
    if code in {126, 127}:
        return SubmitRefused(f"cannot run sbatch: {said or 'there is no such command'}", NOT_HERE)
    if code < 0 or code == 124 or 128 < code <= 128 + 64:
        return SubmitUnknown(f"sbatch was ended before it gave an answer\n{said}".strip())
    if any(_NO_ANSWER.search(line) for line in lines):
        return SubmitUnknown(f"Slurm gave no clear answer: {_own_words(lines[-1])}")
    if code != 0 and any(_REFUSAL.search(line) for line in lines):
        # Warnings and a site's own notes stand beside the reason; all of it is worth reading.
        return SubmitRefused(f"Slurm refused the job: {said}", _hint(said))
    return SubmitUnknown(f"sbatch ended with code {code} and no job id: {said or 'it printed nothing'}")


def _own_words(line: str) -> str:
    """A line without sbatch's own decoration."""
    line = re.sub(r"^sbatch: (error: |fatal: )?", "", line)
    return re.sub(r"^Batch job submission failed: ", "", line)


def _hint(said: str) -> str | None:
    return next((hint for pattern, hint in _HINTS if re.search(pattern, said, re.IGNORECASE)), None)
