"""run.json, code.json, the journals: which run this is, which processes change it, and whether it is this user's own.

The journals are for people and for finding out who claimed an attempt; no state is decided by them alone. Each process
has a file of its own because appends from two hosts to one file tear on NFS.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from hpc_launch.agent.job_processes import pid_space, start_of
from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import access_to, only_writable_by
from hpc_launch.base.json_records import file_lines, line_record, read_record
from hpc_launch.runs.layout import FOLDER_MODE, RunFolder


class ProcessRecord(Struct, frozen=True, kw_only=True):
    """A process of some host, so that another process can later check whether it has ended.

    Base of the records that name the process that wrote them: run.json, intent.json, journals, image locks.
    """

    host: str | None = None
    pid: int | None = None
    pid_start: str | None = None
    """Boot, pid namespace and start ticks, which tell a reused process id apart."""
    pid_job: str | None = None
    """The Slurm job on whose node it runs, and with which it ends; None outside of jobs."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def process(self) -> ProcessRecord | None:
        """The record where it names a process."""
        return self if self.host and self.pid is not None and self.pid > 0 else None


def this_process() -> ProcessRecord:
    """The current process."""
    pid = os.getpid()
    ticks = _own_start(pid)
    # The shell of an salloc on a login node has the job's id too, and outlives it.
    job = os.environ.get("SLURM_JOB_ID") if "SLURMD_NODENAME" in os.environ else None
    start = f"{pid_space()}:{ticks}" if ticks else ""
    return ProcessRecord(host=os.uname().nodename, pid=pid, pid_start=start, pid_job=job or None)


_own_start = lru_cache(maxsize=1)(start_of)


def by_this_process() -> dict[str, Any]:
    """The fields of a record that this process writes, for its constructor."""
    return structs.asdict(this_process())


def certainly_gone(process: ProcessRecord) -> bool:
    """Whether a process has certainly ended. False wherever there is doubt.

    Another host, another boot and another pid namespace cannot be inspected, so nothing there is certain.
    """
    space, _, ticks = (process.pid_start or "").rpartition(":")
    if process.pid is None or process.host != os.uname().nodename or (process.pid_start and space != pid_space()):
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    # A process that takes our signals shows us its start, unless it is a zombie.
    return bool(ticks) and str(start_of(process.pid)) != ticks


class RunInfo(ProcessRecord, frozen=True, kw_only=True):
    """run.json: the run and the process that created it. `created` is in seconds since the epoch."""

    run: str = ""
    name: str = ""
    site: str = ""
    scheduler: str = ""
    """`slurm`, `ssh` or `local`."""
    cluster: str | None = None
    """Slurm's cluster, where the job names one of several."""
    created: float = 0.0
    version: str = ""
    """The hpc-launch release that created the run."""


class CodeInfo(Struct, frozen=True, kw_only=True):
    """code.json: the copy of the training's code."""

    root: str
    """The folder that was copied."""
    commit: str | None = None
    """The commit checked out there, where it is a git repository."""
    kept: bool = True
    """Whether there is a copy; if not, the script runs from `root`."""
    why: str | None = None
    """Why there is no copy."""
    files: int = 0
    bytes: int = 0
    linked: tuple[str, ...] = ()
    """Paths that are linked instead of copied."""


def read_info(run: RunFolder) -> RunInfo | None:
    """The content of run.json, of a point that of its sweep; None where the run is not complete on disk."""
    info = read_record(run.info, RunInfo)
    if info is None or run.sweep is None or not info.run:
        return info
    return structs.replace(info, run=f"{info.run}/{run.name.rpartition('/')[2]}")


def changeable_by_others(run: RunFolder) -> Path | None:
    """The folder of the run, or of the sweep or pipeline above it, that another user owns or can write to.

    None if there is none: nobody else can then put a file into the run, whose folders are the user's own.
    """
    home = run.sweep or run
    for folder in (home.pipeline or home, home, run):
        try:
            if not only_writable_by(os.getuid(), access_to(folder.path, links=False)):
                return folder.path
        except FileNotFoundError:
            continue
        except OSError:
            return folder.path
    return None


def why_not_own(run: RunFolder) -> str | None:
    """Why nobody may continue the run from here, as text; None if this user may.

    A folder of another name is a copy of the run that its records name, with that run's jobs.
    """
    info, path = read_info(run), changeable_by_others(run)
    if info is not None and info.run and info.run != run.name:
        return f"{run.path} is a copy of the run {info.run}"
    return f"{path} belongs to another user, or other users can change it" if path is not None else None


def refuse_foreign(run: RunFolder) -> None:
    """Raise UsageError if another user could have changed what the next attempt would run, or if it is a copy."""
    reason = why_not_own(run)
    if reason is not None:
        hint = f"only its owner can continue a run, and only there; `chmod -R go-w {run.path}` closes it to others"
        raise UsageError(reason, hint)


def refuse_other_users_run(run: RunFolder) -> None:
    """Raise UsageError for a run folder of another user, whose records may name any job."""
    if run.is_foreign:
        raise UsageError(f"{run.path} belongs to another user", "only its owner can cancel it")


class JournalEvent(ProcessRecord, frozen=True, kw_only=True):
    """One event of a run and the process that wrote it. `time` is in seconds since the epoch."""

    time: float
    event: str
    attempt: int | None = None
    job_id: str | None = None
    reason: str | None = None


class Journal:
    """The journal of this process in one run: JSON Lines, append-only. The file is created with the first event."""

    def __init__(self, run: RunFolder, *, clock: Callable[[], float] = time.time) -> None:
        self._process = by_this_process()
        name = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(2)}.jsonl"
        self._run = run
        self._path = run.journal / name.replace("/", "_")
        self._clock = clock

    def write(self, event: str, **fields: Any) -> None:
        """Append one event. Raises OSError."""
        line = json.dumps({"time": self._clock(), "event": event, **fields, **self._process}, default=str)
        data = f"{line}\n".encode()
        self._path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)

    def note(self, event: str, **fields: Any) -> None:
        """Append an event if possible: for acts that must go on although they cannot be recorded."""
        with suppress(OSError):
            self.write(event, **fields)


def read_journals(run: RunFolder) -> list[JournalEvent]:
    """All events of a run by time, without torn or foreign lines. Never raises."""
    try:
        paths = sorted(path for path in run.journal.iterdir() if path.name.endswith(".jsonl"))
    except OSError:
        return []
    events = [line_record(line, JournalEvent) for path in paths for line in file_lines(path)]
    return sorted((event for event in events if event is not None), key=lambda event: event.time)
