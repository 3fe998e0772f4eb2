"""The folder of a sweep: its points, which are runs, its job arrays, and which process submits further points.

The lock of `one_submitter` only saves work: where the file system has no locks, the claims of arrays and attempts still
make each point train once (submit_array.py).
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.base.json_records import read_record
from hpc_launch.base.user_dirs import user
from hpc_launch.job.sweep_points import SweepPoint, label, matches
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.run_info import refuse_other_users_run
from hpc_launch.runs.records.submission import request_cancel

SHOWN = 5
"""How many points an error message names."""

_ARRAY = re.compile(r"[0-9]{3,5}\Z")


class SweepRecord(Struct, frozen=True, kw_only=True):
    """sweep.json: what was submitted. Written once."""

    points: tuple[SweepPoint, ...] = ()
    sets: tuple[str, ...] = ()
    """The `--set` options of all points."""
    limit: int | None = None
    """How many points may run at the same time."""
    metric: str | None = None
    """Regular expression of the value by which points are compared; None: the loss."""
    goal: Literal["min", "max"] = "min"
    job_folder: str | None = None
    """The folder that relative paths of the job file start from."""
    job_file: str | None = None


@dataclass(frozen=True)
class GroupFolder:
    """A sweep or a pipeline on disk."""

    run: RunFolder

    @property
    def name(self) -> str:
        """The name of the group."""
        return self.run.name

    @property
    def cancel(self) -> Path:
        """Exists once a user asked for the end of the group."""
        return self.run.path / "cancel.json"

    def ask_to_cancel(self, mark: Path | None = None) -> None:
        """Record that the user asks for the end of the group, or of the stage that `mark` stands for.

        Raises UsageError for another user's group.
        """
        refuse_other_users_run(self.run)
        with suppress(OSError):
            if not os.path.exists(mark or self.cancel):
                request_cancel(mark or self.cancel, user())


class SweepFolder(GroupFolder):
    """A sweep on disk."""

    @cached_property
    def record(self) -> SweepRecord:
        """Its points; empty where sweep.json cannot be read."""
        return read_record(self.run.sweep_info, SweepRecord) or SweepRecord()

    @property
    def submitted(self) -> Path:
        """Exists once each point has a job."""
        return self.run.path / "submitted"

    @property
    def refused(self) -> Path:
        """Why the scheduler refused the last array; its age tells when."""
        return self.run.path / "refused"

    @property
    def lock(self) -> Path:
        """Locked by the process that submits points (`one_submitter`)."""
        return self.run.path / "lock"

    def point(self, number: int) -> RunFolder:
        """The run of a point, whether it exists or not."""
        return RunFolder(self.run.path / f"{self.run.path.name}.{number}")

    def runs(self) -> list[RunFolder]:
        """The runs of the points that exist."""
        return [run for point in self.record.points if (run := self.point(point.number)).exists]

    def array(self, number: int) -> AttemptFolder:
        """The folder of a job array: it is submitted as an attempt is."""
        return AttemptFolder(self.run.arrays / f"{number:03d}")

    def arrays(self) -> list[AttemptFolder]:
        """All arrays by number."""
        try:
            names = [name for name in os.listdir(self.run.arrays) if _ARRAY.match(name)]
        except OSError:
            return []
        return [AttemptFolder(self.run.arrays / name) for name in sorted(names, key=int)]

    def label(self, run: RunFolder) -> str:
        """The values of a point, such as `lr=3e-4,seed=1`."""
        number = point_number(run)
        return next((label(point.values) for point in self.record.points if point.number == number), "")


def point_number(run: RunFolder) -> int:
    """The number of a point, by the name of its folder."""
    return int(run.path.name.rpartition(".")[2])


def sweep_of(run: RunFolder) -> SweepFolder | None:
    """The sweep whose folder this is; None for an ordinary run."""
    return SweepFolder(run) if os.path.exists(run.sweep_info) else None


def find_point(sweep: SweepFolder, text: str) -> RunFolder:
    """The point that `7` or `lr=3e-4` names. Raises UsageError where there is none, or several."""
    points = sweep.record.points
    if text.isdecimal():
        found = [point for point in points if point.number == int(text)]
    else:
        found = [point for point in points if matches(point, text)]
    if len(found) > 1:
        names = ", ".join(f"{point.number} ({label(point.values)})" for point in found[:SHOWN])
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise UsageError(f"{text!r} may mean point {names}{more}", "give more values, or the number")
    if not found:
        last = points[-1].number if points else 0
        raise UsageError(f"{sweep.name} has no point {text!r}", f"its points are 0 to {last}: see hpc-launch status")
    return sweep.point(found[0].number)


FROZEN_S = 600.0
"""A process that holds the lock for so long may be frozen: the others go on without it."""


@contextmanager
def one_submitter(sweep: SweepFolder) -> Iterator[bool]:
    """Whether this process may submit points of the sweep now. False while another one does."""
    with ExitStack() as stack:
        free = True
        try:
            descriptor = os.open(sweep.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, descriptor)
            # POSIX locks reach other nodes over NFS, and a supervisor that is forked meanwhile does not inherit them.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.utime(descriptor)
        except (BlockingIOError, PermissionError):
            free = _seems_frozen(sweep)
        except OSError:
            pass  # no locks here
        yield free


def _seems_frozen(sweep: SweepFolder) -> bool:
    try:
        return time.time() - sweep.lock.stat().st_mtime > FROZEN_S
    except OSError:
        return False
