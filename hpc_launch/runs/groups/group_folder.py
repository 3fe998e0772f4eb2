"""The folder of a group of runs: a sweep with its points, which are runs, or a pipeline with its stages.

A stage is a run or a sweep, or several runs: one for each checkpoint, or for each point of another stage.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import user
from hpc_launch.base.json_records import read_record
from hpc_launch.job.group_keys import Condition
from hpc_launch.job.sweep_points import SweepPoint, label, matches
from hpc_launch.runs.layout import AttemptFolder, Entry, RunFolder, attempts_in
from hpc_launch.runs.records.run_info import refuse_other_users_run
from hpc_launch.runs.records.submission import request_cancel

SHOWN = 5
"""How many points or runs an error message names."""

_KEY = re.compile(r"[0-9]+(-[0-9]+)?\Z")
_KEY_AT_END = re.compile(r"(-[0-9]+){1,2}\Z")


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
    def path(self) -> Path:
        """Its folder."""
        return self.run.path

    cancel = Entry("cancel.json")
    """Exists once a user asked for the end of the group."""

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

    submitted = Entry("submitted")
    """Exists once each point has a job."""
    refused = Entry("refused")
    """Why the scheduler refused the last array; its age tells when."""
    lock = Entry("lock")
    """Locked by the process that submits points (`one_submitter`)."""

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
        return attempts_in(self.run.arrays)


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
    """Whether this process may submit points of the sweep now. False while another one does.

    The lock only saves work: where the file system has none, the claims of arrays and attempts still make each point
    train once (job_arrays.py).
    """
    free, descriptor = True, None
    try:
        descriptor = os.open(sweep.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        # POSIX locks reach other nodes over NFS, and a supervisor that is forked meanwhile does not inherit them.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.utime(descriptor)
    except (BlockingIOError, PermissionError):
        with suppress(OSError):
            free = time.time() - sweep.lock.stat().st_mtime > FROZEN_S
    except OSError:
        pass  # no locks here
    try:
        yield free
    finally:
        if descriptor is not None:
            os.close(descriptor)


class StageRecord(Struct, frozen=True, kw_only=True):
    """A stage as submitted."""

    name: str
    after: dict[str, Condition] = {}
    on: str | None = None
    """The stage for each of whose checkpoints this one runs."""
    every: int = 1
    each: str | None = None
    """The sweep for each of whose points this one runs."""
    sweep: bool = False
    values: tuple[str, ...] = ()
    """The values of other stages that its job uses, such as `train.best.checkpoint`."""

    @property
    def target(self) -> str | None:
        """The stage that it runs for each part of; None for a stage that runs once."""
        return self.on or self.each


class PipelineRecord(Struct, frozen=True, kw_only=True):
    """pipeline.json: what was submitted. Written once."""

    stages: tuple[StageRecord, ...] = ()
    sets: tuple[str, ...] = ()
    """The `--set` options."""
    job_folder: str | None = None
    """The folder that relative paths of the job file start from."""
    environment: dict[str, str] = {}
    """Variables that the job file or the profile refers to, as they were at submission."""


class PipelineFolder(GroupFolder):
    """A pipeline on disk."""

    @cached_property
    def record(self) -> PipelineRecord:
        """Its stages; empty where pipeline.json cannot be read."""
        return read_record(self.run.pipeline_info, PipelineRecord) or PipelineRecord()

    def stage(self, name: str) -> StageRecord | None:
        """A stage by its name."""
        return next((stage for stage in self.record.stages if stage.name == name), None)

    def stage_run(self, name: str, key: str | None = None) -> RunFolder:
        """The run of a stage, whether it exists or not; with a key, the one for that checkpoint or point."""
        return RunFolder(self.run.path / f"{self.run.path.name}.{name}{f'-{key}' if key else ''}")

    def runs(self, name: str) -> dict[str, RunFolder]:
        """The existing runs of a stage that runs several times, by their keys."""
        head = f"{self.run.path.name}.{name}-"
        try:
            keys = [one[len(head) :] for one in os.listdir(self.run.path) if one.startswith(head)]
        except OSError:
            return {}
        keys = sorted(filter(_KEY.match, keys), key=lambda key: [int(part) for part in key.split("-")])
        found = {key: RunFolder(self.run.path / f"{head}{key}") for key in keys}
        return {key: run for key, run in found.items() if run.exists}

    def stage_runs(self) -> list[RunFolder]:
        """The existing runs and sweeps of all stages."""
        result: list[RunFolder] = []
        for stage in self.record.stages:
            if stage.target is not None:
                result += self.runs(stage.name).values()
            elif (run := self.stage_run(stage.name)).exists:
                result.append(run)
        return result

    def cancelled(self, stage: str) -> Path:
        """Exists once a user asked for the end of a stage that had not begun, or that runs several times."""
        return self.run.path / f"cancel-{stage}.json"

    def refused(self, stage: str, key: str | None = None) -> Path:
        """Why a stage could not be submitted; its age tells when."""
        return self.run.path / f"refused-{stage}{f'-{key}' if key else ''}"

    def seen(self, stage: str) -> Path:
        """The folder with a file for each checkpoint that a driver saw, which says whether the stage runs for it."""
        return self.run.path / f"seen-{stage}"


def pipeline_of(run: RunFolder) -> PipelineFolder | None:
    """The pipeline that a run, a sweep or a point belongs to; None for any other run."""
    home = (run.sweep or run).pipeline
    return PipelineFolder(home) if home is not None and os.path.exists(home.pipeline_info) else None


def as_pipeline(run: RunFolder) -> PipelineFolder | None:
    """The pipeline whose folder this is; None for anything else."""
    return PipelineFolder(run) if os.path.exists(run.pipeline_info) else None


def stage_of(run: RunFolder) -> str:
    """The stage that a run, a sweep or a point belongs to."""
    return _KEY_AT_END.sub("", (run.sweep or run).path.name.rpartition(".")[2])


def find_stage(pipeline: PipelineFolder, text: str) -> RunFolder:
    """The run that `train`, or for one of several runs `watch-200`, names, whether it exists or not.

    Raises UsageError where there is no such stage.
    """
    run = pipeline.stage_run(text)
    stage = pipeline.stage(text) or pipeline.stage(_KEY_AT_END.sub("", text))
    if stage is None or (stage.name != text and (stage.target is None or not run.exists)):
        several = pipeline.runs(stage.name) if stage is not None else ()
        names = [f"{stage.name}-{key}" for key in several] if stage is not None else []
        names = names or [one.name for one in pipeline.record.stages]
        shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        what = "runs" if several else "stages"
        raise UsageError(f"{pipeline.name} has no stage {text!r}", f"its {what}: {shown}")
    return run


def without_run(run: RunFolder) -> tuple[PipelineFolder, StageRecord]:
    """The pipeline and the stage of a folder that `find_stage` named. Raises UsageError."""
    pipeline = pipeline_of(run)
    stage = pipeline.stage(stage_of(run)) if pipeline is not None else None
    if pipeline is None or stage is None:
        raise UsageError(f"{run.path} is no stage of a pipeline", "hpc-launch list shows all runs")
    return pipeline, stage


def reopen(pipeline: PipelineFolder, stages: Sequence[str]) -> bool:
    """Forget that these stages were cancelled or refused, and that later ones were refused. Whether there was any."""
    found, later = False, set(stages)
    for _ in pipeline.record.stages:
        later |= {one.name for one in pipeline.record.stages if {*one.after, one.target} & later}
    marks = [pipeline.cancel, *(pipeline.cancelled(name) for name in stages)]
    for name in later:
        marks += [pipeline.refused(name), *pipeline.run.path.glob(f"refused-{name}-[0-9]*")]
    for mark in marks:
        with suppress(OSError):
            mark.unlink()
            found = True
    with suppress(OSError):
        os.utime(pipeline.run.pipeline_info)  # its final state may be kept
    return found
