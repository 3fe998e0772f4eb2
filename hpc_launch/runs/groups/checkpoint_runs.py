"""For which checkpoints of a training another stage runs: each complete one counts once, whatever drivers look at it.

A file for each checkpoint that a driver saw keeps the decision, so that a later look, or one after old checkpoints were
deleted, comes to the same. The last checkpoint of a training that is over counts in any case.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from hpc_launch.agent.checkpoints import CheckpointFound, CheckpointRule, newest_complete, newest_first
from hpc_launch.base.files import create_once, read_text
from hpc_launch.runs.checkpoint_files import is_complete, rule_of
from hpc_launch.runs.groups.pipeline_folder import PipelineFolder, StageRecord
from hpc_launch.runs.layout import FOLDER_MODE, RunFolder

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
            if not decide or not is_complete(rule, found):
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
