"""The folder of a sweep: its points, which are runs, and its job arrays."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.base.json_records import read_record
from hpc_launch.job.sweep_points import SweepPoint, label, matches
from hpc_launch.runs.layout import AttemptFolder, RunFolder

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
class SweepFolder:
    """A sweep on disk."""

    run: RunFolder

    @cached_property
    def record(self) -> SweepRecord:
        """Its points; empty where sweep.json cannot be read."""
        return read_record(self.run.sweep_info, SweepRecord) or SweepRecord()

    @property
    def name(self) -> str:
        """The name of the sweep."""
        return self.run.name

    @property
    def cancel(self) -> Path:
        """Exists once a user asked for the end of the sweep."""
        return self.run.path / "cancel.json"

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
        """Locked by the process that submits points (one_submitter.py)."""
        return self.run.path / "lock"

    @property
    def ended(self) -> Path:
        """Holds a file for each point whose job has ended while other points had no job yet."""
        return self.run.path / "ended"

    @property
    def next_look(self) -> Path:
        """How many points must have ended before the next one to end submits further points."""
        return self.run.path / "next-look"

    def point(self, number: int) -> RunFolder:
        """The run of a point, whether it exists or not."""
        return RunFolder(self.run.path / f"{self.run.path.name}.{number}")

    def runs(self) -> list[RunFolder]:
        """The runs of the points that exist."""
        return [run for point in self.record.points if (run := self.point(point.number)).exists]

    def begun(self) -> list[RunFolder]:
        """The runs of the points that have an attempt."""
        return [run for run in self.runs() if run.attempts()]

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


def tasks_of(array: AttemptFolder) -> Iterator[tuple[int, AttemptFolder]]:
    """The tasks of an array, each with the attempt that it runs."""
    with suppress(OSError):
        for entry in sorted(os.scandir(array.path), key=lambda entry: entry.name):
            if entry.name.isdecimal() and entry.is_symlink():
                yield int(entry.name), AttemptFolder(Path(os.path.normpath(array.path / os.readlink(entry.path))))


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
