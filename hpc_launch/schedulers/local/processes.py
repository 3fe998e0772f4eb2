"""Processes as /proc shows them: who is alive, who descends from whom, who belongs to a job. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable

JOB_ID = "HPC_LAUNCH_JOB_ID"

IN_ALLOCATION = "HPC_LAUNCH_IN_ALLOCATION"
"""Tells a script for Slurm that it runs inside an allocation that was there before, under our own job id."""
MARK = "HPC_LAUNCH_LOCAL_JOB"
"""Variables that every process of a local job inherits: the job id for its script, and `ID:FOLDER` as a mark, since
ids are counted in each state folder anew."""

SUPERVISOR = "hpc_launch.schedulers.local.supervisor"


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on (proc(5)); the second may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()
    except OSError:
        return None


def start_of(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot (field 22); None for one that is gone or a zombie.

    A number is used again in time; number and start together name one process.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def _numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def descendants(ancestor: int) -> list[int]:
    """All living processes below `ancestor`, whatever session they are in.

    Another job's supervisor is left out with all below it: a job may submit the next one, whose supervisor then
    stays its descendant for as long as the first one's supervisor is its subreaper.
    """
    children: dict[int, list[int]] = {}
    for pid in _numbers():
        fields = _stat(pid)
        if fields and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    rest = [ancestor]
    while rest:
        below = [pid for pid in children.pop(rest.pop(), []) if not _supervises(pid)]
        found += below
        rest += below
    return found


def _supervises(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            return SUPERVISOR.encode() in stream.read().split(b"\0")
    except OSError:
        return False


def mark(job_id: str, folder: str) -> str:
    """The mark of the job that runs in an attempt's folder."""
    return f"{job_id}:{folder}"


def marked(job_id: str, folder: str) -> list[int]:
    """All living processes of this user that carry the mark of a job, whoever their parent is now."""
    wanted = os.fsencode(f"{MARK}={mark(job_id, folder)}")
    found = []
    for pid in _numbers():
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                variables = stream.read().split(b"\0")
        except OSError:
            continue  # gone, or another user's
        if wanted in variables and start_of(pid) is not None:
            found.append(pid)
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each of these, and mind none that is gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
