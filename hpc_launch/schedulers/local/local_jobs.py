"""The local jobs of a user by id: a small file each in the state folder that points to the attempt's folder.

`create_once` makes the number unique, on every host that shares the folder. The numbers count up from one that each
folder has of its own, so that ports made from them seldom meet, those of different users included.
"""

from __future__ import annotations

import json
import os
import socket
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_launch.base.files import create_once, read_json
from hpc_launch.base.user_dirs import make_private, state_folder
from hpc_launch.schedulers.local.processes import start_of

PREFIX = "local-"
STARTING_S = 5.0
"""How long a supervisor may take to write its first word once its submitter is gone; it takes a tenth of a second."""
FORGOTTEN_S = 3600.0
"""An entry whose attempt folder is gone is dropped after so long."""


@dataclass(frozen=True)
class LocalJob:
    """One local job, as it was about to be submitted."""

    job_id: str
    name: str
    folder: Path
    host: str
    submitted: float
    submitter: int
    submitter_start: int | None

    @property
    def being_submitted(self) -> bool:
        """Whether the job may still start: its submitter lives, or died so lately that a supervisor may be starting."""
        if 0 <= time.time() - self.submitted < STARTING_S:
            return True
        return self.host == socket.gethostname() and start_of(self.submitter) == self.submitter_start


def _folder() -> Path:
    return state_folder() / "local"


def _numbers(folder: Path) -> list[int]:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    stems = [name.removeprefix(PREFIX).removesuffix(".json") for name in names if name.startswith(PREFIX)]
    return [int(stem) for stem in stems if stem.isdecimal()]


def register(name: str, folder: Path) -> LocalJob:
    """Take the next number for a job. Raises OSError where the state folder cannot be written."""
    home = make_private(_folder())
    number = max(_numbers(home), default=zlib.crc32(f"{socket.gethostname()}:{os.getuid()}:{home}".encode()) % 20000)
    while True:
        number += 1
        entry = LocalJob(
            job_id=f"{PREFIX}{number}",
            name=name,
            folder=folder,
            host=socket.gethostname(),
            submitted=time.time(),
            submitter=os.getpid(),
            submitter_start=start_of(os.getpid()),
        )
        text = json.dumps({**vars(entry), "folder": os.fspath(folder)})
        if create_once(home / f"{entry.job_id}.json", text):
            return entry


def forget(job_id: str) -> None:
    """Drop the entry of a job that never started."""
    (_folder() / f"{job_id}.json").unlink(missing_ok=True)


def lookup(job_id: str) -> LocalJob | None:
    """The entry of a job; None for an id of some other kind, or long gone."""
    if not job_id.removeprefix(PREFIX).isdecimal():
        return None
    value = read_json(_folder() / f"{job_id}.json")
    if value is None:
        return None
    try:
        return LocalJob(**{**value, "folder": Path(value["folder"])})
    except (TypeError, KeyError):
        return None


def entries() -> Iterator[LocalJob]:
    """All jobs, the newest first. Entries whose folder is long gone are dropped, but for the one that counts on."""
    numbers = sorted(_numbers(_folder()), reverse=True)
    for number in numbers:
        entry = lookup(f"{PREFIX}{number}")
        if entry is None:
            continue
        if number != numbers[0] and time.time() - entry.submitted > FORGOTTEN_S and not entry.folder.exists():
            forget(entry.job_id)
            continue
        yield entry
