"""The report of a run: its time, its curves, its attempts with their evidence, and its script."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hpc_launch import __version__
from hpc_launch.base.files import read_text
from hpc_launch.performance.run_times import RunTimes
from hpc_launch.report.charts import STYLE, Curve, curves, document, element, escaped, escaped_lines, table, timeline
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.verdict_record import VerdictRecord, read_verdict, stored_diagnosis
from hpc_launch.runs.status.run_status import AttemptStatus, RunStatus
from hpc_launch.view.format_values import duration, hosts, number, share
from hpc_launch.view.state_text import elapsed, phases_text, progress_parts

POINTS = 160
"""Places of the log of each attempt that are read for the curves."""
MOST_ATTEMPTS = 200
SCRIPT_LINES, SCRIPT_CHARACTERS = 5000, 1 << 20
GOOD, BAD = frozenset({"COMPLETED", "RUNNING"}), frozenset({"FAILED", "STUCK"})


@dataclass(frozen=True)
class RunReport:
    """What the page is made of. `now`: seconds since the epoch. `notes`: further sentences about the time."""

    status: RunStatus
    times: RunTimes
    now: float
    notes: tuple[str, ...] = ()


def run_page(report: RunReport) -> str:
    """The page as HTML."""
    status = report.status
    parts = [_head(report), _time(report), *_curves(report), _attempts(report), _script(status)]
    made = f"Written by hpc-launch {__version__} at {_moment(report.now)}."
    parts.append(element("p", escaped(made), class_="dim"))
    return document(f"{status.run}: {status.state}", STYLE, "\n".join(filter(None, parts)))


def _head(report: RunReport) -> str:
    status, account = report.status, report.times.account
    kind = "good" if status.state in GOOD else "bad" if status.state in BAD else ""
    state = element("span", escaped(status.state), class_=f"state {kind}".strip())
    reason = f": {escaped(status.reason)}" if status.reason else ""
    facts = {
        "productive training": share(account.goodput) if account.goodput is not None else "",
        "wall time": duration(account.wall_s),
        "attempts": str(len(status.attempts)),
        "progress": ", ".join(progress_parts(status)),
        "site": status.site,
    }
    shown = "".join(element("div", element("b", escaped(text)) + escaped(name)) for name, text in facts.items() if text)
    return element("h1", escaped(status.run)) + element("p", state + reason) + element("div", shown, class_="facts")


def _time(report: RunReport) -> str:
    account = report.times.account
    if not account.intervals:
        return ""
    used = account.wall_s - account.seconds("queued")
    rows = [
        (
            element("span", "", class_=f"key {category}") + escaped(category),
            escaped(duration(seconds)),
            escaped(share(seconds / used) if used > 0 and category != "queued" else ""),
        )
        for category, seconds in account.by_category().items()
        if seconds > 0
    ]
    notes = [f"Starts by phase: {phases_text(account)}."] if phases_text(account) else []
    begin = f"From {_moment(account.intervals[0].begin)} to {_moment(account.intervals[-1].end)}."
    labels = {part.attempt: f"attempt {part.attempt}" if part.attempt else "" for part in account.intervals}
    return "".join(
        [
            element("h2", "Where the time went"),
            element("p", escaped(begin), class_="dim"),
            timeline(account, labels) if len(labels) <= MOST_ATTEMPTS else "",
            table(("category", "time", "share of the job's time"), rows, {1: "n", 2: "n"}),
            *(element("p", escaped(note)) for note in (*notes, *report.notes)),
        ]
    )


def _curves(report: RunReport) -> Iterator[str]:
    """Loss by step, and steps per second by time."""
    begin = report.times.account.intervals[0].begin if report.times.account.intervals else report.now
    losses: list[Curve] = []
    rates: list[Curve] = []
    begins: list[float] = []
    numbers = sorted(report.times.curves)[-MOST_ATTEMPTS:]
    for number_of_attempt in numbers:
        curve, most = report.times.curves[number_of_attempt], max(8, POINTS * 4 // (3 + len(numbers)))
        points = curve.points(most)
        losses.append([(float(step), loss) for step, loss in curve.losses(2 * most)])
        rates.append(list(_rates([(at - begin, step) for at, step in points])))
        if points:
            begins.append(points[0][0] - begin)
    loss = curves(losses, "Loss by step", label=number, times=False)
    rate = curves(rates, "Steps per second over time", label=number, begins=begins, times=True)
    if loss:
        yield element("h2", "Loss by step") + loss
    if rate:
        yield element("h2", "Steps per second over time") + rate
        if len(begins) > 1:
            yield element("p", "Dashed lines: an attempt shows its first step.", class_="dim")


def _rates(points: Sequence[tuple[float, int]]) -> Iterator[tuple[float, float]]:
    """Steps per second between each two points with different steps."""
    grown = [point for at, point in enumerate(points) if at == 0 or point[1] > points[at - 1][1]]
    for (t0, s0), (t1, s1) in pairwise(grown):
        if t1 > t0 and s1 > s0:
            yield (t0 + t1) / 2, (s1 - s0) / (t1 - t0)


def _attempts(report: RunReport) -> str:
    status, run = report.status, RunFolder(report.status.folder)
    if not status.attempts:
        return ""
    rows = []
    for attempt in status.attempts[-MOST_ATTEMPTS:]:
        spent = elapsed(attempt, report.now)
        rows.append(
            (
                escaped(attempt.number),
                escaped(attempt.job_id or ""),
                escaped(attempt.state),
                escaped(hosts(attempt.nodes)),
                escaped(_moment(attempt.started)) if attempt.started is not None else "",
                escaped(duration(spent)) if spent is not None else "",
                escaped(attempt.failure_class or ""),
                escaped(attempt.verdict or ""),
            )
        )
    headers = ("#", "job", "state", "nodes", "started", "took", "class", "verdict")
    details = [_evidence(attempt, read_verdict(run.attempt(attempt.number))) for attempt in status.attempts]
    omitted = len(status.attempts) - len(rows)
    note = element("p", escaped(f"{omitted} older attempts are not shown."), class_="dim") if omitted else ""
    return element("h2", "Attempts") + table(headers, rows, {3: "long"}) + note + "".join(details[-MOST_ATTEMPTS:])


def _evidence(attempt: AttemptStatus, verdict: VerdictRecord | None) -> str:
    """Why an attempt ended and what followed; nothing for one without a verdict."""
    if verdict is None:
        return ""
    diagnosis = stored_diagnosis(verdict)
    words = [f"{verdict.action}: {verdict.reason}" if verdict.reason else verdict.action]
    if diagnosis is not None:
        first, cause = diagnosis.first_failure, diagnosis.cause
        words.insert(0, f"{verdict.failure_class}{f' ({cause})' if cause else ''}, confidence {diagnosis.confidence}")
        where = [f"rank {first.rank}"] if first.rank is not None else []
        where += [f"on {first.node}"] if first.node is not None else []
        where += [f"at {_moment(first.time)}"] if first.time is not None else []
        words += [f"First failure: {' '.join(where)}"] if where else []
    words += [f"Excluded: {hosts(verdict.exclude)}"] if verdict.exclude else []
    words += [f"Readmitted: {hosts(verdict.readmit)}"] if verdict.readmit else []
    words += [f"Changed: {' '.join(verdict.sets)}"] if verdict.sets else []
    quotes = "\n".join(f"{quote.file}:{quote.line or ''}".rstrip(":") + f"  {quote.text}" for quote in verdict.evidence)
    return "".join(
        [
            element("h3", escaped(f"Attempt {attempt.number}: {attempt.state}")),
            *(element("p", escaped(text)) for text in words),
            element("pre", escaped_lines(quotes, 100)) if quotes else "",
        ]
    )


def _script(status: RunStatus) -> str:
    """The script of the last attempt that has one, with the origin of each value, and the merged job file."""
    run = RunFolder(status.folder)
    scripts = [attempt.script for attempt in reversed(run.attempts()) if os.path.isfile(attempt.script)]
    files = {"Script": scripts[:1], "Merged values": [run.resolved_yaml]}
    parts = []
    for title, paths in files.items():
        text = next((text for path in paths if (text := _text(path))), None)
        if text is not None:
            content = element("summary", escaped(title)) + element("pre", escaped_lines(text, SCRIPT_LINES))
            parts.append(element("details", content))
    note = element("p", "The right-hand comments name the origin of each line.", class_="dim")
    return element("h2", "Script and origins") + note + "".join(parts) if parts else ""


def _text(path: Path) -> str | None:
    with suppress(OSError):
        return read_text(path, errors="replace", longest=SCRIPT_CHARACTERS)
    return None


def _moment(when: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(when))
    except (OverflowError, ValueError, OSError):
        return "unknown time"
