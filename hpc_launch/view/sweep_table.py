"""A sweep as a table: a line for each point."""

from __future__ import annotations

from hpc_launch.job.sweep_points import SweepPoint, label, short_names
from hpc_launch.runs.sweeps.sweep_status import PointStatus, SweepStatus
from hpc_launch.view.format_values import aligned, clean, number
from hpc_launch.view.state_text import reason_text


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
        row.extend(_columns(one, best=one is best))
    counts = ", ".join(f"{count} {state}" for state, count in status.counts.items())
    lines = [*aligned(rows, empty=False), "", f"{clean(status.sweep.name)}: {len(status.points)} points: {counts}"]
    if best is not None and best.metric is not None:
        lines.append(f"best ({status.sweep.record.goal}): {clean(label(best.point.values))}: {number(best.metric)}")
    return lines


def _columns(one: PointStatus, *, best: bool) -> list[str]:
    status = one.status
    step = "" if status.progress.step is None else str(status.progress.step)
    if step and status.progress.total is not None:
        step += f"/{status.progress.total}"
    value = "" if one.metric is None else number(one.metric) + (" *" if best else "")
    attempts = str(len(status.attempts)) if len(status.attempts) > 1 else ""
    why = "" if status.state == "COMPLETED" else reason_text(status)
    return [status.state, step, value, attempts, status.job_id or "", why]
