"""The jobs of a user without Slurm, by id, and their states.

One small file per job in the state folder points to the attempt folder, where its supervisor writes local.json.
`create_once` keeps ids unique across hosts that share the state folder. Each folder counts up from its own start
number, so that ids rarely collide, even between users.
"""

from __future__ import annotations

import os
import re
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from hpc_launch.agent.job_processes import machine_id, pid_space, start_of, stat_of
from hpc_launch.base.files import make_private, read_text, state_folder
from hpc_launch.base.json_records import create_record, read_record
from hpc_launch.schedulers.job_files import ELSEWHERE, LOCAL_STATE, SCRIPT, hosts_of
from hpc_launch.schedulers.local.supervisor import is_supervisor
from hpc_launch.schedulers.scheduler import JobRecord


class LocalState(JobRecord, frozen=True, kw_only=True, omit_defaults=True):
    """local.json: the state of a local job, and its processes."""

    host: str | None = None
    pid: int | None = None
    """The supervisor's process id."""
    pid_start: int | None = None
    """When that process started, in clock ticks since boot: tells a reused process id apart."""
    space: str | None = None
    """The boot and the pid namespace that the process ids belong to, and the machine."""
    machine: str | None = None
    shell: int | None = None
    """Process id of the batch shell."""

    @property
    def here(self) -> bool:
        """Whether the job runs where this process sees its supervisor, or ran here before the last reboot."""
        if self.host != socket.gethostname() or not self.space:
            return False
        here, boot = pid_space(), self.space.partition(":")[0]
        rebooted = boot != here.partition(":")[0] and bool(self.machine) and self.machine == machine_id()
        return self.space == here or rebooted

    @property
    def place(self) -> str:
        """Where the job runs if not here."""
        return f"{self.host}{', outside this container' if self.host == socket.gethostname() else ''}"

    @property
    def supervised(self) -> bool:
        """Whether the supervisor is alive; meaningful on its own host only, and false after a reboot. The file may
        name any process, so the process itself must be a supervisor."""
        if not self.space or self.space != pid_space():
            return False
        alive = self.pid is not None and self.pid_start is not None and start_of(self.pid) == self.pid_start
        return alive and self.pid is not None and is_supervisor(self.pid)

    @property
    def batch_shell(self) -> int | None:
        """The batch shell's process id, if that process is a child of the supervisor. Meaningful on its own host."""
        shell = self.shell
        is_child = shell is not None and stat_of(shell)[1:2] == [str(self.pid)]
        return shell if is_child and self.supervised else None


def read_local_state(folder: Path, job_id: str) -> LocalState | None:
    """The state of a job in its attempt's folder; None while the supervisor has not written it."""
    state = read_record(folder / LOCAL_STATE, LocalState)
    return state if state is not None and state.job_id == job_id else None


_ID = re.compile(r"(?:local|ssh)-([0-9]{1,18})\Z")
STARTING_S = 5.0
"""Seconds that a supervisor may take to write its first record after its submitter died; it usually takes 0.1 s."""
FORGOTTEN_S = 3600.0
"""Seconds after which an entry whose attempt folder is gone is dropped."""


class LocalJob(Struct, frozen=True, kw_only=True):
    """A local job as registered before its submission."""

    job_id: str
    name: str
    path: str = field(name="folder")
    host: str
    submitted: float
    submitter: int = 0
    submitter_start: int | None = -1
    hosts: tuple[str, ...] = ()
    """The hosts by their names for ssh: the first one has the supervisor. Empty for a job on `host`."""

    @property
    def folder(self) -> Path:
        """The attempt folder."""
        return Path(self.path)

    @property
    def being_submitted(self) -> bool:
        """Whether the job may still start: its submitter is alive, or died within the last STARTING_S seconds."""
        if 0 <= time.time() - self.submitted < STARTING_S:
            return True
        return self.host == socket.gethostname() and start_of(self.submitter) == self.submitter_start


def _folder() -> Path:
    return state_folder() / "local"


def _ids(folder: Path) -> dict[str, int]:
    """The ids, each with its number."""
    try:
        stems = [path.name.removesuffix(".json") for path in folder.iterdir()]
    except OSError:
        return {}
    return {stem: int(match[1]) for stem in stems if (match := _ID.match(stem))}


def register(name: str, folder: Path, hosts: tuple[str, ...] = ()) -> LocalJob:
    """Register a job under the next free id. Raises OSError if the state folder cannot be written."""
    home = make_private(_folder())
    number = max(
        _ids(home).values(), default=zlib.crc32(f"{socket.gethostname()}:{os.getuid()}:{home}".encode()) % 20000
    )
    while True:
        number += 1
        entry = LocalJob(
            job_id=f"{'ssh' if hosts else 'local'}-{number}",
            name=name,
            path=os.fspath(folder),
            host=socket.gethostname(),
            submitted=time.time(),
            submitter=os.getpid(),
            submitter_start=start_of(os.getpid()),
            hosts=hosts,
        )
        if create_record(home / f"{entry.job_id}.json", entry):
            return entry


def adopt(job_id: str, folder: Path) -> None:
    """Register the job of one's own attempt folder again, if another state folder has it, and it is not over."""
    if not _ID.match(job_id) or lookup(job_id) is not None:
        return
    with suppress(OSError, UnicodeError):
        state = read_local_state(folder, job_id)
        if state is None or state.ended_for_good or folder.stat().st_uid != os.getuid():
            return
        entry = LocalJob(
            job_id=job_id,
            name=state.name or "",
            path=os.fspath(folder),
            host=state.host or "",
            submitted=state.submitted or 0.0,
            hosts=hosts_of(read_text(folder / SCRIPT, errors="replace"))[0],
        )
        create_record(make_private(_folder()) / f"{job_id}.json", entry)


def forget(job_id: str) -> None:
    """Remove the entry of a job that never started."""
    (_folder() / f"{job_id}.json").unlink(missing_ok=True)


def lookup(job_id: str) -> LocalJob | None:
    """The entry of a job; None if the id is not a local job's or its entry was dropped."""
    if not _ID.match(job_id):
        return None
    return read_record(_folder() / f"{job_id}.json", LocalJob)


def entries() -> Iterator[LocalJob]:
    """All jobs, newest first. Drops old entries without a folder, except the newest, which keeps the count."""
    ids = _ids(_folder())
    newest = max(ids.values(), default=0)
    for job_id, number in sorted(ids.items(), key=lambda item: item[1], reverse=True):
        entry = lookup(job_id)
        if entry is None:
            continue
        if number != newest and time.time() - entry.submitted > FORGOTTEN_S and not os.path.exists(entry.folder):
            forget(entry.job_id)
            continue
        yield entry


class Elsewhere(Struct, frozen=True):
    """Where a run is whose first host does not share the run folder. From its submission on, its files are there; the
    folder here only says so, and commands for the run go there."""

    host: str


def host_with(run: Path) -> str | None:
    """The host that has the run; None if it is here."""
    path = run / ELSEWHERE
    found = read_record(path, Elsewhere) if os.path.lexists(path) and path.lstat().st_uid == os.getuid() else None
    return found.host if found is not None else None
