"""Sweeps and pipelines as tables: a line for each point or stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc_launch.job.sweep_points import SweepPoint, label, short_names
from hpc_launch.runs.groups.group_folder import StageRecord
from hpc_launch.runs.groups.pipeline_status import PipelineStatus, StageStatus
from hpc_launch.runs.groups.sweep_status import SweepStatus
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view.format_values import aligned, clean, number
from hpc_launch.view.state_text import reason_text, step_text


def point_rows(points: tuple[SweepPoint, ...]) -> list[list[str]]:
    """The points with their values: the number, then a column for each key."""
    names = list(dict.fromkeys(name for point in points for name in short_names(point.values)))
    rows = [["POINT", *names]]
    for point in points:
        values = {name: text for name, (_, text) in zip(short_names(point.values), point.values, strict=True)}
        rows.append([str(point.number), *(values.get(name, "") for name in names)])
    return rows


def sweep_lines(status: SweepStatus) -> list[str]:
    """The table of `status SWEEP`: its points, how many are in which state, and the best one."""
    best = status.best
    metric = "LOSS" if status.sweep.record.metric is None else "METRIC"
    rows = point_rows(tuple(one.point for one in status.points))
    rows[0] += ["STATE", "STEP", metric, "ATTEMPTS", "JOB", "WHY"]
    for row, one in zip(rows[1:], status.points, strict=True):
        value = "" if one.metric is None else number(one.metric) + (" *" if one is best else "")
        step, attempts, job = _run_columns(one.status)
        why = "" if one.status.state == "COMPLETED" else reason_text(one.status)
        row.extend([one.status.state, step, value, attempts, job, why])
    counts = ", ".join(f"{count} {state}" for state, count in status.counts.items())
    lines = [*aligned(rows, empty=False), "", f"{clean(status.sweep.name)}: {len(status.points)} points: {counts}"]
    if best is not None and best.metric is not None:
        lines.append(f"best ({status.sweep.record.goal}): {clean(label(best.point.values))}: {number(best.metric)}")
    return lines


def _run_columns(run: RunStatus) -> tuple[str, str, str]:
    """The step of a run, the number of its attempts if there are several, and its job."""
    return step_text(run.progress), str(len(run.attempts)) if len(run.attempts) > 1 else "", run.job_id or ""


def pipeline_lines(status: PipelineStatus) -> list[str]:
    """The table of `status PIPELINE`: its stages, what each waits for, and the runs of those that run several times."""
    rows = [["STAGE", "AFTER", "STATE", "STEP", "ATTEMPTS", "JOB", "WHY"]]
    for one in status.stages:
        rows.append([one.stage.name, waits_for(one.stage), one.state, *_stage_columns(one), _why(one)])
        for run in one.runs if one.stage.target is not None else ():
            why = "" if run.state == "COMPLETED" else run.reason or ""
            rows.append([f"  {run.run.rpartition('/')[2]}", "", run.state, *_run_columns(run), why])
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


def _stage_columns(one: StageStatus) -> tuple[str, str, str]:
    if len(one.runs) != 1 or one.stage.target is not None:
        return "", "", ""
    step, attempts, job = _run_columns(one.runs[0])
    return f"{step} points" if one.sweep is not None and "/" in step else step, attempts, job


def _why(one: StageStatus) -> str:
    return "" if one.state == "COMPLETED" and one.sweep is None else one.reason or ""
