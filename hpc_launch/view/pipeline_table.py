"""A pipeline as a table: a line for each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc_launch.runs.pipelines.pipeline_folder import StageRecord
from hpc_launch.runs.pipelines.pipeline_status import PipelineStatus
from hpc_launch.runs.pipelines.stage_status import StageStatus
from hpc_launch.view.format_values import aligned, clean


def pipeline_lines(status: PipelineStatus) -> list[str]:
    """The table of `status PIPELINE`: its stages, what each waits for, and the runs of those that run several times."""
    rows = [["STAGE", "AFTER", "STATE", "STEP", "ATTEMPTS", "JOB", "WHY"]]
    for one in status.stages:
        rows.append([one.stage.name, waits_for(one.stage), one.state, *_run_columns(one), _why(one)])
        for run in one.runs if one.stage.target is not None else ():
            step = "" if run.progress.step is None else str(run.progress.step)
            attempts = str(len(run.attempts)) if len(run.attempts) > 1 else ""
            why = "" if run.state == "COMPLETED" else run.reason or ""
            rows.append([f"  {run.run.rpartition('/')[2]}", "", run.state, step, attempts, run.job_id or "", why])
    whole = status.as_run()
    return [*aligned(rows, empty=False), "", f"{clean(status.pipeline.name)}: {whole.state}"]


def stage_lines(stages: Sequence[StageRecord], points: Mapping[str, int]) -> list[str]:
    """The table of `submit --dry-run`: the stages, what each waits for, and how many points it has."""
    rows = [["STAGE", "AFTER", "POINTS"]]
    rows += [[one.name, waits_for(one), str(points.get(one.name, ""))] for one in stages]
    return aligned(rows)


def waits_for(stage: StageRecord) -> str:
    """`train, prepare (any)`."""
    words = [name if wanted == "ok" else f"{name} ({wanted})" for name, wanted in stage.after.items()]
    if stage.on is not None:
        which = "each checkpoint" if stage.every == 1 else f"every {stage.every} checkpoints"
        words.append(f"{which} of {stage.on}")
    if stage.each is not None:
        words.append(f"each point of {stage.each}")
    return ", ".join(words)


def _run_columns(one: StageStatus) -> list[str]:
    if len(one.runs) != 1 or one.stage.target is not None:
        return ["", "", ""]
    run = one.runs[0]
    step = "" if run.progress.step is None else str(run.progress.step)
    if step and run.progress.total is not None:
        step += f"/{run.progress.total}" + (" points" if one.sweep is not None else "")
    return [step, str(len(run.attempts)) if len(run.attempts) > 1 else "", run.job_id or ""]


def _why(one: StageStatus) -> str:
    return "" if one.state == "COMPLETED" and one.sweep is None else one.reason or ""
