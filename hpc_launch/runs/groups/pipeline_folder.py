"""The folder of a pipeline: its stages, each of which has its own folder once it has begun.

For which checkpoints of a training another stage runs: each complete one counts once, whatever drivers look at it.

A file for each checkpoint that a driver saw keeps the decision, so that a later look, or one after old checkpoints were
deleted, comes to the same. The last checkpoint of a training that is over counts in any case.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from msgspec import Struct

from hpc_launch.agent.checkpoints import CheckpointFound, CheckpointRule, newest_complete, newest_first, why_incomplete
from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import create_once, read_text
from hpc_launch.base.json_records import read_record
from hpc_launch.job.group_keys import Condition
from hpc_launch.runs.checkpoint_files import rule_of
from hpc_launch.runs.groups.sweep_folder import GroupFolder
from hpc_launch.runs.layout import FOLDER_MODE, RunFolder

_KEY = re.compile(r"[0-9]+(-[0-9]+)?\Z")
_KEY_AT_END = re.compile(r"(-[0-9]+){1,2}\Z")

SHOWN = 5
"""How many names an error message lists."""


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


class StageInfo(Struct, frozen=True, kw_only=True):
    """stage.json in a run folder: the run belongs to a stage of a pipeline."""

    stage: str
    key: str | None = None
    """Which of the stage's runs this is: its checkpoint, or its point; None for a stage that runs once."""


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
            names = [one for one in os.listdir(self.run.path) if one.startswith(head) and _KEY.match(one[len(head) :])]
        except OSError:
            return {}
        found = {one[len(head) :]: RunFolder(self.run.path / one) for one in names}
        return {key: found[key] for key in sorted(found, key=_by_number) if found[key].exists}

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
        several = list(pipeline.runs(stage.name)) if stage is not None else []
        names = [f"{stage.name}-{key}" for key in several] if stage is not None else []
        names = names or [one.name for one in pipeline.record.stages]
        what = "stages" if not several else "runs"
        shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
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


def _by_number(key: str) -> list[int]:
    return [int(part) for part in key.split("-")]


_RUN, _SKIP = "run", "skip"


class Training(Struct, frozen=True):
    """A run whose checkpoints count. `point`: its number, where it is one of a sweep."""

    run: RunFolder
    over: bool
    point: int | None = None


class CheckpointRun(Struct, frozen=True):
    """A run that a stage has, or is to have, for a checkpoint."""

    key: str
    training: RunFolder
    found: CheckpointFound


def checkpoint_runs(
    pipeline: PipelineFolder, stage: StageRecord, trainings: Iterable[Training], *, decide: bool
) -> Iterator[CheckpointRun]:
    """The runs that a stage is to have for the checkpoints that are there now.

    `decide`: put on record which of the new checkpoints count; otherwise they are left to the next driver.
    """
    for training in trainings:
        rule = rule_of(training.run)
        if rule is None:
            continue
        head = "" if training.point is None else f"{training.point}-"
        chosen = {}
        for found in reversed(newest_first(rule)):
            key = f"{head}{_number(found)}"
            if _counts(pipeline, stage, rule, found, key, head, decide=decide):
                chosen[key] = CheckpointRun(key, training.run, found)
        last = newest_complete(rule) if training.over else None
        if last is not None:
            key = f"{head}{_number(last)}"
            chosen[key] = CheckpointRun(key, training.run, last)
        yield from chosen.values()


def _number(found: CheckpointFound) -> int:
    return found.step if found.step is not None else int(found.time)


def _counts(  # noqa: PLR0917 - a checkpoint and its place
    pipeline: PipelineFolder,
    stage: StageRecord,
    rule: CheckpointRule,
    found: CheckpointFound,
    key: str,
    head: str,
    *,
    decide: bool,
) -> bool:
    note = pipeline.seen(stage.name) / key
    with suppress(OSError):
        if not os.path.exists(note):
            if not decide or why_incomplete(rule, found) is not None:
                return False
            note.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
            position = _seen(note.parent, head) + 1
            create_once(note, _RUN if position % stage.every == 0 else _SKIP)
        return read_text(note, errors="replace") == _RUN
    return False


def _seen(folder: Path, head: str) -> int:
    """How many checkpoints of a training have been seen."""
    names = [name for name in os.listdir(folder) if not name.startswith(".")]
    return sum(name.startswith(head) and name.removeprefix(head).isdecimal() for name in names)
