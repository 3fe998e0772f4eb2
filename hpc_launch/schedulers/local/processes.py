"""Processes from /proc: start times, descendants, processes of a job. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable

JOB_ID = "HPC_LAUNCH_JOB_ID"

IN_ALLOCATION = "HPC_LAUNCH_IN_ALLOCATION"
"""Set for a Slurm script that runs inside an existing allocation, under a job id of hpc-launch."""
JOB_MARKER = "HPC_LAUNCH_LOCAL_JOB"
"""Variables that every process of a local job inherits: the job id for its script, and `ID:FOLDER` as its marker,
because ids are unique only within a state folder."""

SUPERVISOR = "hpc_launch.schedulers.local.supervisor"


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on (proc(5)); the second may contain spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()
    except OSError:
        return None


def start_of(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22); None if it is gone or a zombie.

    Process ids are reused; id and start time together identify a process.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def parent_of(pid: int) -> int | None:
    """Process id of the parent; None if the process is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def descendants(ancestor: int) -> list[int]:
    """All living descendants of a process, in any session.

    Excludes the supervisor of another job and its descendants: a job may submit the next one, whose supervisor stays
    a descendant while the first job's supervisor is its subreaper.
    """
    children: dict[int, list[int]] = {}
    for pid in _pids():
        fields = _stat(pid)
        if fields and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(pid)
    pids: list[int] = []
    pending = [ancestor]
    while pending:
        below = [pid for pid in children.pop(pending.pop(), []) if not is_supervisor(pid)]
        pids += below
        pending += below
    return pids


def is_supervisor(pid: int) -> bool:
    """Whether a process is the supervisor of a local job."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            return SUPERVISOR.encode() in stream.read().split(b"\0")
    except OSError:
        return False


def job_marker(job_id: str, folder: str) -> str:
    """The marker of the job that runs in an attempt folder."""
    return f"{job_id}:{folder}"


def processes_of_job(job_id: str, folder: str, shell: int | None = None) -> list[int]:
    """All living processes with the marker of a job, and those in the session of its batch shell that wrote over their
    environment."""
    from hpc_launch.agent.watch_processes import belonging

    return belonging([f"{JOB_MARKER}={job_marker(job_id, folder)}"], {str(shell)})


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
