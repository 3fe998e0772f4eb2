"""Who a process is, in a way that another process can check later: host, number, and when it started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_launch.run.records import values


@dataclass(frozen=True)
class Process:
    """A process of some host. `start` tells a reused number apart: boot, pid namespace and start ticks, or ''.

    `job` is the Slurm job on whose node it runs, with which it ends; '' outside of jobs.
    """

    host: str
    pid: int
    start: str
    job: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields as they stand in intent.json, run.json and the journals."""
        inside = {"pid_job": self.job} if self.job else {}
        return {"host": self.host, "pid": self.pid, "pid_start": self.start, **inside}

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Process:
    """The process that asks."""
    pid = os.getpid()
    ticks = _start_ticks(pid)
    # The shell of an salloc on a login node has the job's id too, and outlives it.
    job = os.environ.get("SLURM_JOB_ID", "") if "SLURMD_NODENAME" in os.environ else ""
    return Process(os.uname().nodename, pid, f"{_space()}:{ticks}" if ticks else "", job)


def process_of(data: Mapping[str, Any] | None) -> Process | None:
    """The process that `as_json` described; None where the data does not say."""
    if data is None:
        return None
    host, pid = values.text(data.get("host")), values.whole(data.get("pid"))
    if not (host and pid and pid > 0):
        return None
    return Process(host, pid, values.text(data.get("pid_start")) or "", values.text(data.get("pid_job")) or "")


def certainly_gone(process: Process) -> bool:
    """Whether this machine can vouch that `process` has ended. False wherever there is doubt.

    Another host, another boot and another pid namespace cannot be looked into, so nothing there is certain.
    """
    if process.host != os.uname().nodename:
        return False
    space, _, ticks = process.start.rpartition(":")
    if process.start and space != _space():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    now = _start_ticks(process.pid)
    return bool(ticks) and bool(now) and now != ticks


def _space() -> str:
    """This boot and this pid namespace: the space in which a process number means something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> str:
    """When the process started, in clock ticks since the boot; '' where that is not shown, `ended` for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    if len(fields) < 20:
        return ""
    return "ended" if fields[0] in "ZX" else fields[19]
