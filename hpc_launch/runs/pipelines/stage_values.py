"""The values that a stage uses of others: where their runs are, and the newest complete checkpoint of each.

They come from the records of those runs. A training can put files into its own folder of checkpoints, but cannot name a
place elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpc_launch.base.errors import UserError
from hpc_launch.runs.checkpoint_files import CheckpointFound, near_miss, newest_checkpoint, rule_of
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.pipelines.pipeline_folder import PipelineFolder
from hpc_launch.runs.pipelines.stage_status import DueRun
from hpc_launch.runs.sweeps.sweep_status import SweepStatus


class UnknownValue(UserError):
    """A value of another stage is not known: the stage that uses it cannot run."""


def stage_values(pipeline: PipelineFolder, due: DueRun, found: Mapping[str, object]) -> dict[str, str]:
    """The values of the stage's job by their names. Raises UnknownValue."""
    return {name: _value(pipeline, due, found, name) for name in due.stage.values}


def _value(pipeline: PipelineFolder, due: DueRun, found: Mapping[str, object], name: str) -> str:
    stage, _, key = name.partition(".")
    run, checkpoint = pipeline.stage_run(stage), None
    if stage == due.stage.target:
        if due.checkpoint is not None:
            run, checkpoint = due.checkpoint.training, due.checkpoint.found
        run = due.point or run
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
        raise UnknownValue(f"`${{{name}}}` is not known: {_why_none(run)}")
    if key == "step" and checkpoint.step is None:
        raise UnknownValue(f"`${{{name}}}` is not known: `checkpoint.pattern` of {stage} has no group for the step")
    return _text(checkpoint, key)


def _text(checkpoint: CheckpointFound, key: str) -> str:
    return str(checkpoint.step) if key == "step" else str(checkpoint.path)


def _why_none(run: RunFolder) -> str:
    if rule_of(run) is None:
        return f"`checkpoint.dir` of {run.name} does not say where its checkpoints are"
    missed = near_miss(run)
    return f"{run.name} has no complete checkpoint{f': {missed}' if missed else ''}"
