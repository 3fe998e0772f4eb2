"""Identify a process so that another process can later check whether it has ended: host, process id, start time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypedDict

from msgspec import Struct

from hpc_launch.base.pid_space import pid_space
from hpc_launch.schedulers.local.processes import start_of


@dataclass(frozen=True)
class Process:
    """A process of some host.

    Attributes:
        host: The host's name.
        pid: The process id.
        start: Boot, pid namespace and start ticks, which tell a reused process id apart; '' where not known.
        job: The Slurm job on whose node it runs, and with which it ends; '' outside of jobs.
    """

    host: str
    pid: int
    start: str
    job: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class ProcessFields(TypedDict):
    """The fields of a ProcessRecord, for its constructor."""

    host: str
    pid: int
    pid_start: str
    pid_job: str | None


class ProcessRecord(Struct, frozen=True, kw_only=True):
    """Base of the records that name the process that wrote them: run.json, intent.json, journals, image locks."""

    host: str | None = None
    pid: int | None = None
    pid_start: str | None = None
    pid_job: str | None = None

    @property
    def process(self) -> Process | None:
        """The process; None where the record does not name one."""
        if not self.host or self.pid is None or self.pid <= 0:
            return None
        return Process(self.host, self.pid, self.pid_start or "", self.pid_job or "")


def process_fields(process: Process) -> ProcessFields:
    """The fields that describe a process in a record."""
    return {"host": process.host, "pid": process.pid, "pid_start": process.start, "pid_job": process.job or None}


def this_process() -> Process:
    """The current process."""
    pid = os.getpid()
    ticks = start_of(pid)
    # The shell of an salloc on a login node has the job's id too, and outlives it.
    job = os.environ.get("SLURM_JOB_ID", "") if "SLURMD_NODENAME" in os.environ else ""
    return Process(os.uname().nodename, pid, f"{pid_space()}:{ticks}" if ticks else "", job)


def certainly_gone(process: Process) -> bool:
    """Whether `process` has certainly ended. False wherever there is doubt.

    Another host, another boot and another pid namespace cannot be inspected, so nothing there is certain.
    """
    if process.host != os.uname().nodename:
        return False
    space, _, ticks = process.start.rpartition(":")
    if process.start and space != pid_space():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    # A process that takes our signals shows us its start, unless it is a zombie.
    return bool(ticks) and str(start_of(process.pid)) != ticks
