"""Runs, points and stages as tables, where the time of runs went, and what they used of what they requested."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from hpc_launch.job.sweep_points import SweepPoint, label, short_names
from hpc_launch.job.units import counted
from hpc_launch.performance.efficiency import Efficiency
from hpc_launch.performance.time_account import CATEGORIES, TimeAccount
from hpc_launch.runs.groups.group_folder import StageRecord
from hpc_launch.runs.groups.pipeline_status import PipelineStatus
from hpc_launch.runs.groups.sweep_status import SweepStatus
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view.format_values import ago, aligned, clean, cut, display_width, duration, hosts, number, pad, share
from hpc_launch.view.state_text import elapsed, reason_text, startup_text, step_text
from hpc_launch.view.terminal import is_terminal, painted, wants_colour, write_lines

HEADERS = ("RUN", "STATE", "TIME", "STEP", "LOSS", "JOB", "SITE", "HOSTS", "WHY")

_DROP_ORDER = ("SITE", "LOSS", "JOB", "HOSTS", "WHY", "STEP", "TIME")
"""Order in which columns are dropped on a narrow terminal; name and state always stay, and are never cut: names are
copied by hand."""

_ELASTIC = (HEADERS.index("HOSTS"), HEADERS.index("WHY"))
_LEAST = 12
"""To what width the last columns may be cut."""

_GAP = "  "


def table_lines(
    statuses: Iterable[RunStatus], *, width: int | None = None, colour: bool = False, now: float | None = None
) -> list[str]:
    """The runs as lines with aligned columns, in the order given. Empty columns are left out.

    In `width` columns the least important ones are dropped too, and the last ones cut.
    """
    when, shown_runs = time.time() if now is None else now, list(statuses)
    rows = [HEADERS, *(_texts(status, when) for status in shown_runs)]
    widths = [max(display_width(row[at]) for row in rows) for at in range(len(HEADERS))]
    shown = [at for at in range(len(HEADERS)) if at < 2 or any(row[at] for row in rows[1:])]
    if width is not None:
        shown, widths = _fitting(shown, widths, width)
    lines = [[pad(cut(row[at], widths[at]), widths[at]) for at in shown] for row in rows]
    for line, status in zip(lines[1:], shown_runs, strict=True):
        line[1] = line[1].replace(status.state, painted(status.state, status.state, colour=colour))
    return [_GAP.join(line).rstrip() for line in lines]


def _fitting(shown: list[int], full: list[int], width: int) -> tuple[list[int], list[int]]:
    """The columns that fit, and the width of each."""
    widths = [min(wide, _LEAST) if at in _ELASTIC else wide for at, wide in enumerate(full)]

    def left() -> int:
        return width - sum(widths[at] + len(_GAP) for at in shown) + len(_GAP)

    for name in _DROP_ORDER:
        if left() >= 0:
            break
        shown = [at for at in shown if HEADERS[at] != name]
    for at in filter(shown.__contains__, _ELASTIC):
        widths[at] = min(full[at], widths[at] + max(left(), 0))
    return shown, widths


def show(statuses: Iterable[RunStatus], stream: TextIO | None = None) -> None:
    """Write the table of runs to `stream` (default: stdout)."""
    out = stream or sys.stdout
    width = shutil.get_terminal_size().columns if is_terminal(out) else None
    write_lines(table_lines(statuses, width=width, colour=wants_colour(out)), out)


def _texts(status: RunStatus, now: float) -> tuple[str, ...]:
    progress = status.progress
    return (
        clean(status.run),
        status.state,
        _time(status, now),
        step_text(progress),
        "" if progress.loss is None else number(progress.loss),
        clean(status.job_id or ""),
        clean(status.site),
        hosts(status.hosts),
        "" if status.state == "COMPLETED" else startup_text(status, now) or reason_text(status),
    )


def _time(status: RunStatus, now: float) -> str:
    attempt = status.last
    if attempt is None:
        return ""
    if attempt.ended is not None:
        return ago(now - attempt.ended)
    if status.progress.eta_s and not status.final:
        return f"{duration(status.progress.eta_s)} left"
    spent = elapsed(attempt, now)
    if spent is not None:
        return f"for {duration(spent)}"
    if status.state in ("PENDING", "STUCK") and attempt.submitted is not None:
        return f"queued {duration(now - attempt.submitted)}"
    return ""


def goodput_lines(statuses: Sequence[RunStatus], accounts: Sequence[TimeAccount]) -> list[str]:
    """One line for each run, and one for all of them if there are several. Empty columns are left out."""
    shown = [name for name in CATEGORIES if any(account.seconds(name) >= 1 for account in accounts)]
    table = [["RUN", "STATE", "GOODPUT", "WALL", *(name.upper() for name in shown)]]

    def add(name: str, state: str, included: Sequence[TimeAccount]) -> None:
        wall = sum(account.wall_s for account in included)
        spent = {name: sum(account.seconds(name) for account in included) for name in CATEGORIES}
        used = wall - spent["queued"]
        times = [duration(seconds) if seconds >= 1 else "" for seconds in (wall, *(spent[name] for name in shown))]
        table.append([name, state, share(spent["training"] / used) if used > 0 else "", *times])

    for status, account in zip(statuses, accounts, strict=True):
        add(status.run, status.state, [account])
    if len(accounts) > 1:
        add("all", "", accounts)
    return aligned(table)


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
    total = counted(len(status.points), "point")
    lines = [*aligned(rows, empty=False), "", f"{clean(status.sweep.name)}: {total}: {counts}"]
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
        why = "" if one.state == "COMPLETED" and one.sweep is None else one.reason or ""
        step, attempts, job = "", "", ""
        if len(one.runs) == 1 and one.stage.target is None:
            step, attempts, job = _run_columns(one.runs[0])
            step = f"{step} points" if one.sweep is not None and "/" in step else step
        rows.append([one.stage.name, waits_for(one.stage), one.state, step, attempts, job, why])
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


def efficiency_fields(found: Efficiency) -> list[tuple[str, str]]:
    """The card as names and texts: `use`, such as `GPUs 31%, CPUs 3.9 of 8`, and `advice`; empty texts are unknown."""
    text = ", ".join(f"{name} {text}" for name, text in _use_texts(found).items() if text)
    return [("use", text), ("advice", clean(found.advice))]


def efficiency_lines(statuses: Sequence[RunStatus], uses: Sequence[Efficiency]) -> list[str]:
    """The table of `list --efficiency`: runs with idle GPUs first, then by the use of the GPUs."""
    rows = [["RUN", "STATE", "GPUS", "IDLE", "MEMORY", "CPUS", "TIME", "ADVICE"]]
    for run, use in sorted(zip(statuses, uses, strict=True), key=lambda pair: pair[1].order):
        gpus, *others = _use_texts(use).values()
        rows.append([run.run, run.state, gpus, str(use.idle_gpus or ""), *others, use.advice])
    return aligned(rows, empty=False)


def _use_texts(found: Efficiency) -> dict[str, str]:
    """Each use with what was requested; '' where it is not known."""
    memory = f" of {number(found.memory_requested)}" if found.memory_requested else ""
    cpus, limit = f" of {found.cpus_requested}" if found.cpus_requested else "", found.time_requested
    return {
        "GPUs": share(found.gpu_use) if found.gpu_use is not None else "",
        "memory": f"{number(round(found.memory, 1))}{memory} GiB" if found.memory is not None else "",
        "CPUs": number(round(found.cpus, 1)) + cpus if found.cpus is not None else "",
        "time": f"{duration(found.time)} of {duration(limit)}" if found.time is not None and limit else "",
    }
