"""What a stage of a pipeline gets from others: the checkpoints that it runs for, and values of their runs.

Each complete checkpoint counts once, whatever drivers look at it. A file for each checkpoint that a driver saw keeps
the decision, so that a later look, or one after old checkpoints were deleted, comes to the same. The last checkpoint of
a training that is over counts in any case.

Values come from the records of the runs: a training can put files into its own folder of checkpoints, but cannot name a
place elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct

from hpc_launch.agent.checkpoints import CheckpointFound, newest_complete, newest_first, why_incomplete
from hpc_launch.base.errors import UserError
from hpc_launch.base.files import create_once, read_text
from hpc_launch.runs.checkpoint_files import near_miss, newest_checkpoint, rule_of
from hpc_launch.runs.groups.group_folder import PipelineFolder, StageRecord, point_number
from hpc_launch.runs.groups.sweep_status import SweepStatus
from hpc_launch.runs.layout import FOLDER_MODE, RunFolder

_RUN, _SKIP = "run", "skip"


class DueRun(Struct, frozen=True):
    """A run of a stage that is to be submitted now."""

    stage: StageRecord
    attempt: int
    """The number of its last attempt, which came to nothing; 0 for none. A later one is another driver's."""
    key: str | None = None
    target: RunFolder | None = None
    """The run of another stage that it is for: a point, or a training with the checkpoint."""
    checkpoint: CheckpointFound | None = None


def checkpoints_for(
    pipeline: PipelineFolder, stage: StageRecord, training: RunFolder, *, over: bool, decide: bool
) -> dict[str, CheckpointFound]:
    """The checkpoints of a training, `over` or not, that a stage is to run for now, by the keys of these runs.

    `decide`: put on record which of the new checkpoints count; otherwise they are left to the next driver.
    """
    rule = rule_of(training)
    if rule is None:
        return {}
    head = "" if training.sweep is None else f"{point_number(training)}-"
    chosen = {}
    for found in reversed(newest_first(rule)):
        note = pipeline.seen(stage.name) / f"{head}{_number(found)}"
        with suppress(OSError):
            if not os.path.exists(note):
                if not decide or why_incomplete(rule, found) is not None:
                    continue
                note.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
                numbers = (name.removeprefix(head) for name in os.listdir(note.parent) if name.startswith(head))
                seen = sum(map(str.isdecimal, numbers))
                create_once(note, _RUN if (seen + 1) % stage.every == 0 else _SKIP)
            if read_text(note, errors="replace") == _RUN:
                chosen[note.name] = found
    last = newest_complete(rule) if over else None
    return chosen if last is None else {**chosen, f"{head}{_number(last)}": last}


def _number(found: CheckpointFound) -> int:
    return found.step if found.step is not None else int(found.time)


class UnknownValue(UserError):
    """A value of another stage is not known: the stage that uses it cannot run."""


def stage_values(pipeline: PipelineFolder, due: DueRun, found: Mapping[str, object]) -> dict[str, str]:
    """The values of the stage's job by their names. Raises UnknownValue."""
    return {name: _value(pipeline, due, found, name) for name in due.stage.values}


def _value(pipeline: PipelineFolder, due: DueRun, found: Mapping[str, object], name: str) -> str:
    stage, _, key = name.partition(".")
    run, checkpoint = pipeline.stage_run(stage), None
    if stage == due.stage.target:
        run, checkpoint = due.target or run, due.checkpoint
    elif key.startswith("best."):
        sweep = found.get(run.name)
        best = sweep.best if isinstance(sweep, SweepStatus) else None
        if best is None or not isinstance(sweep, SweepStatus):
            what = "shows the value by which points are compared (`sweep.metric`, or the loss of `progress`)"
            raise UnknownValue(f"`${{{name}}}` is not known: no log of a point of {run.name} {what}")
        run, key = sweep.sweep.point(best.point.number), key.removeprefix("best.")
    if key == "folder":
        return str(run.path)
    checkpoint = checkpoint or newest_checkpoint(run)
    if checkpoint is None:
        missed = near_miss(run)
        why = f"{run.name} has no complete checkpoint{f': {missed}' if missed else ''}"
        if rule_of(run) is None:
            why = f"`checkpoint.dir` of {run.name} does not say where its checkpoints are"
        raise UnknownValue(f"`${{{name}}}` is not known: {why}")
    if key == "step" and checkpoint.step is None:
        raise UnknownValue(f"`${{{name}}}` is not known: `checkpoint.pattern` of {stage} has no group for the step")
    return str(checkpoint.step if key == "step" else checkpoint.path)
