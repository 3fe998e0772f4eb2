"""The report of a run: its time, its curves, what its nodes did, its attempts with their evidence, and its script; and
two runs side by side.

All text of a run is foreign: names, reasons, log lines, scripts. The template escapes it, and shows control characters
and direction marks as escapes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from hpc_launch import __version__
from hpc_launch.base.files import read_text
from hpc_launch.base.json_records import read_record
from hpc_launch.diagnose.diagnosis import FirstFailure
from hpc_launch.performance.measured_pace import interval_of
from hpc_launch.performance.run_times import RunTimes, run_times
from hpc_launch.performance.slow_training import attempt_remarks
from hpc_launch.performance.time_account import merged
from hpc_launch.report.charts import Curve, curves, heat, share_bar, timeline
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.node_records import WatcherSample, spread_samples
from hpc_launch.runs.records.plan_record import PlanRecord, newest_plan
from hpc_launch.runs.records.submission import ScriptRecord
from hpc_launch.runs.records.verdict_record import VerdictRecord, read_verdict, stored_diagnosis
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import AttemptStatus, RunStatus
from hpc_launch.service.listener import Listener
from hpc_launch.service.poll import poll_runs
from hpc_launch.view.format_values import clean, duration, hosts, log_lines, number, share
from hpc_launch.view.run_facts import code_changes, job_settings, losses_by_hours, run_facts, run_links
from hpc_launch.view.state_text import elapsed, interval_text, progress_parts, role_lines, time_json

POINTS = 160
"""Places of the log of each attempt that are read for the curves."""
MOST_ATTEMPTS = 200
QUOTED_LINES, DIFF_LINES = 100, 500
SCRIPT_LINES, SCRIPT_CHARACTERS = 5000, 1 << 17
ONE_SAVE_S = 5.0
"""Files that are saved within so many seconds belong to one checkpoint."""
MOST_SAVES = 200
MOST_NODES = MOST_ROWS = 64
SAMPLED_ATTEMPTS = 20
GOOD, BAD = frozenset({"COMPLETED", "RUNNING"}), frozenset({"FAILED", "STUCK"})
_FOLDER = Path(__file__).parent

Rows = dict[str, list[tuple[float, float]]]
"""By name: seconds since the run was created, and value."""


@dataclass(frozen=True)
class RunReport:
    """What the page is made of. `now`: seconds since the epoch. `notes`: further sentences about the time.

    `facts`: what ran, its speed and cost, by name; `links`: addresses by their text.
    """

    status: RunStatus
    times: RunTimes
    now: float
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def begin(self) -> float:
        """When the run was created."""
        return self.times.account.intervals[0].begin if self.times.account.intervals else self.now


def report_json(report: RunReport) -> dict[str, Any]:
    """What the page shows, for JSON: the status, where the time went, and the steps and losses of each attempt."""
    curves = [
        {"attempt": number, "steps": curve.points(POINTS), "losses": curve.losses(POINTS)}
        for number, curve in sorted(report.times.curves.items())
    ]
    return {**report.status.as_json(), **time_json(report.times.account), "facts": dict(report.facts), "curves": curves}


def gathered(run: RunFolder, index: Index, listener: Listener) -> RunReport:
    """What the page of a run as it is now shows."""
    (status,) = poll_runs([run], index, listener)
    now = time.time()
    times = run_times(status, now)
    interval = interval_of(status, times, index)
    notes = (f"Checkpoints: {interval_text(interval)}.",) if interval is not None else ()
    return RunReport(status, times, now, notes, run_facts(status, times, index, now), run_links(run))


def _rendered(template: str, **values: Any) -> str:
    """A page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
    )
    environment.filters |= {"duration": duration, "hosts": hosts, "moment": _moment, "share": share}
    style = (_FOLDER / "page.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    common = {"style": Markup(style), "style_hash": digest, "version": __version__}  # noqa: S704 - shipped
    return environment.get_template(template).render(**common, **values)


def run_page(report: RunReport) -> str:
    """The page of a run as HTML."""
    status, account = report.status, report.times.account
    run = RunFolder(status.folder)
    labels = {part.attempt: f"attempt {part.attempt}" if part.attempt else "" for part in account.intervals}
    return _rendered(
        "page.html.j2",
        status=status,
        account=account,
        good=status.state in GOOD,
        bad=status.state in BAD,
        now=report.now,
        progress=", ".join(progress_parts(status)),
        phases=account.phases(),
        notes=report.notes,
        shares=share_bar(account),
        timeline=timeline(account, labels) if 0 < len(labels) <= MOST_ATTEMPTS else None,
        roles=_lines("\n".join(role_lines(status, report.now)), SCRIPT_LINES),
        attempts=[_attempt(run, attempt, report.now) for attempt in status.attempts[-MOST_ATTEMPTS:]],
        omitted=max(len(status.attempts) - MOST_ATTEMPTS, 0),
        files=_files(run),
        facts=report.facts,
        links=report.links,
        **_curves(report),
        **_nodes(report, run),
    )


def compare_page(reports: Sequence[RunReport]) -> str:
    """Two runs side by side: the settings that differ, loss by step and GPU hours, speed, cost and goodput."""
    runs = [RunFolder(report.status.folder) for report in reports]
    before, after = map(job_settings, runs)
    names = dict.fromkeys((*before, *after))
    plans, kinds = [newest_plan(run) or PlanRecord() for run in runs], list[str]()
    gpus = [(plan.nodes or 1) * (plan.gpus_per_node or 0) for plan in plans]
    by_step: list[Curve] = []
    by_hours: list[Curve] = []
    for kind, report, size in zip(("first", "second"), reports, gpus if all(gpus) else (1, 1), strict=True):
        for losses, hours in losses_by_hours(report.times, POINTS, report.now):
            kinds.append(kind)
            by_step.append([(float(step), loss) for step, loss in losses])
            by_hours.append([(at * size, loss) for at, (_, loss) in zip(hours, losses, strict=True)])
    same: dict[str, Any] = {"label": number, "times": False, "title": "loss", "kinds": kinds}
    return _rendered(
        "compare.html.j2",
        reports=reports,
        settings=[(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)],
        facts=list(dict.fromkeys(name for report in reports for name in report.facts)),
        shares=[share_bar(report.times.account) for report in reports],
        gpus=all(gpus),
        by_step=curves(by_step, **same),
        by_hours=curves(by_hours, across="GPU hours" if all(gpus) else "hours of the jobs", **same),
        now=reports[0].now,
    )


def _nodes(report: RunReport, run: RunFolder) -> Mapping[str, Any]:
    """The heat maps of nodes and ranks, and their numbers."""
    found, span = _sampled(run.attempts(), report.begin), report.times.account.wall_s
    gpus = bool(found.gpu_use)
    use, memory = (found.gpu_use, found.gpu_gib) if gpus else (found.cpu_use, found.gib)
    nodes = {f"{'► ' if name in found.stragglers else ''}{name}": row for name, row in found.nodes.items()}
    scale: dict[str, Any] = {"high": 100.0, "unit": "%"} if gpus else {"high": 1.0, "unit": "CPUs"}
    per_node, per_rank, sizes = ([y for row in rows.values() for _, y in row] for rows in (nodes, use, memory))
    least, most = min(sizes, default=0.0), max(sizes, default=0.0)
    return {
        "gpus": gpus,
        "use": use,
        "memory": memory,
        "stragglers": sorted(found.stragglers),
        "node_map": heat(nodes, span, **scale | {"high": max([scale["high"], *per_node])}),
        "use_map": heat(use, span, **scale | {"high": max([scale["high"], *per_rank])}),
        "memory_map": heat(memory, span, low=least if least < most else 0.0, high=max(most, 1e-3), unit="GiB"),
    }


def _curves(report: RunReport) -> Mapping[str, Any]:
    """Loss and learning rate by step, and steps per second by time, with checkpoints and restarts."""
    lines: dict[str, list[Curve]] = {"losses": [], "learning": [], "rates": []}
    begins: list[float] = []
    restarts: list[float] = []
    saved: list[float] = []
    numbers = sorted(report.times.curves)[-MOST_ATTEMPTS:]
    for number_of_attempt in numbers:
        curve, most = report.times.curves[number_of_attempt], max(8, POINTS * 4 // (3 + len(numbers)))
        points = curve.points(most)
        lines["losses"].append([(float(step), loss) for step, loss in curve.losses(2 * most)])
        lines["learning"].append([(float(step), rate) for step, rate in curve.losses(2 * most, rates=True)])
        lines["rates"].append(list(_rates([(at - report.begin, step) for at, step in points])))
        for _, end in merged(curve.saves, ONE_SAVE_S)[-MOST_SAVES:] if points else ():
            saved.append(float(points[max(0, bisect_right(points, end, key=itemgetter(0)) - 1)][1]))
        if points:
            begins.append(points[0][0] - report.begin)
            restarts.append(float(points[0][1]))
    marks: dict[str, Any] = {"begins": restarts[1:], "saves": saved, "label": number, "times": False}
    return {
        "losses": curves(lines["losses"], title="loss", **marks),
        "learning": curves(lines["learning"], title="learning rate", **marks),
        "rates": curves(lines["rates"], label=number, begins=begins, times=True, title="steps per second"),
        "begins": begins,
        "saved": saved,
    }


def _rates(points: Sequence[tuple[float, int]]) -> Iterator[tuple[float, float]]:
    """Steps per second between each two points with different steps."""
    grown = [point for at, point in enumerate(points) if at == 0 or point[1] > points[at - 1][1]]
    for (t0, s0), (t1, s1) in pairwise(grown):
        if t1 > t0 and s1 > s0:
            yield (t0 + t1) / 2, (s1 - s0) / (t1 - t0)


def _attempt(run: RunFolder, attempt: AttemptStatus, now: float) -> dict[str, Any]:
    """An attempt, how long it took, why it ended, and the evidence for that."""
    verdict = read_verdict(run.attempt(attempt.number))
    quotes = verdict.evidence if verdict is not None else ()
    lines = [f"{quote.file}:{quote.line or ''}".rstrip(":") + f"  {quote.text}" for quote in quotes]
    return {
        "status": attempt,
        "took_s": elapsed(attempt, now),
        "why": list(_why(verdict)) if verdict is not None else [],
        "quotes": _lines("\n".join(lines), QUOTED_LINES),
    }


def _why(verdict: VerdictRecord) -> Iterator[str]:
    """Why an attempt ended and what followed."""
    diagnosis = stored_diagnosis(verdict)
    if diagnosis is not None:
        cause = f" ({diagnosis.cause})" if diagnosis.cause else ""
        yield f"{verdict.failure_class}{cause}, confidence {diagnosis.confidence}"
    yield f"{verdict.action}: {verdict.reason}" if verdict.reason else verdict.action
    first = diagnosis.first_failure if diagnosis is not None else FirstFailure()
    where = f"{first.place} at {_moment(first.time)}" if first.time is not None else first.place
    if where:
        yield f"First failure: {where.strip()}"
    if verdict.exclude:
        yield f"Excluded: {hosts(verdict.exclude)}"
    if verdict.readmit:
        yield f"Readmitted: {hosts(verdict.readmit)}"
    if verdict.sets:
        yield f"Changed: {' '.join(verdict.sets)}"


def _files(run: RunFolder) -> dict[str, Markup]:
    """The script of the last attempt that has one, with the origin of each value, and the merged job file."""
    scripts = [attempt.script for attempt in reversed(run.attempts()) if os.path.isfile(attempt.script)]
    files = {}
    for title, paths in (("Script", scripts[:1]), ("Merged values", [run.resolved_yaml])):
        for path in paths:
            with suppress(OSError):
                files[title] = _lines(read_text(path, errors="replace", longest=SCRIPT_CHARACTERS), SCRIPT_LINES)
    files["Changes since the commit"] = _lines(code_changes(run)[:SCRIPT_CHARACTERS], DIFF_LINES)
    return {title: text for title, text in files.items() if text}


def _lines(text: str, most: int) -> Markup:
    """Several lines as HTML, at most so many, without escape sequences."""
    lines = text.split("\n")
    shown = [piece for line in lines[:most] for piece in log_lines(line)]
    omitted = [f"… {len(lines) - most} more lines"] if len(lines) > most else []
    return escape("\n".join([*shown, *omitted]))


def _moment(when: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(when))
    except (OverflowError, ValueError, OSError):
        return "unknown time"


@dataclass
class _Sampled:
    """Samples by rank, or by GPU where the node has not one for each rank; without GPUs only of the CPUs."""

    gpu_use: Rows = field(default_factory=dict)
    """Percent."""
    gpu_gib: Rows = field(default_factory=dict)
    cpu_use: Rows = field(default_factory=dict)
    """CPUs in use."""
    gib: Rows = field(default_factory=dict)
    """Memory of the processes."""
    nodes: Rows = field(default_factory=dict)
    """Mean use of the GPUs in percent; without GPUs, the CPUs that the ranks use."""
    stragglers: set[str] = field(default_factory=set)


def _sampled(attempts: Sequence[AttemptFolder], begin: float) -> _Sampled:
    """The samples of the newest attempts; times since `begin`. Never raises."""
    result = _Sampled()
    for attempt in attempts[-SAMPLED_ATTEMPTS:]:
        names = (read_record(attempt.start, ScriptRecord) or ScriptRecord()).node_names
        for node, path in islice(attempt.watcher_files(), MOST_NODES):
            name = names[node] if node < len(names) else f"node {node}"
            name = f"{name} (node {node})" if names.count(name) > 1 else name
            before: WatcherSample | None = None
            for sample in spread_samples(path):
                _add_sample(result, name, sample, before, begin)
                before = sample
        slow = (one.node for one in attempt_remarks(attempt) if one.kind == "node_behind")
        result.stragglers.update(filter(None, slow))
    return result


def _add_sample(result: _Sampled, node: str, sample: WatcherSample, before: WatcherSample | None, begin: float) -> None:
    at, ranks = sample.t - begin, sorted((rank for rank in sample.rss_mib if rank.isdecimal()), key=int)

    def put(rows: Rows, name: str, value: float | None) -> None:
        if value is not None and (name in rows or len(rows) < MOST_ROWS):
            rows.setdefault(name, []).append((at, value))

    for place, gpu in enumerate(sorted(sample.gpus, key=lambda gpu: gpu.index)):
        own = len(ranks) == len(sample.gpus)
        name = f"rank {ranks[place]}, {node}" if own else f"GPU {gpu.index}, {node}"
        put(result.gpu_use, name, gpu.util)
        put(result.gpu_gib, name, gpu.mem_mib / 1024 if gpu.mem_mib is not None else None)
    cpus: list[float] = []
    for rank in ranks:
        name, used = f"rank {rank}, {node}", sample.cpu_s.get(rank)
        put(result.gib, name, sample.rss_mib[rank] / 1024)
        earlier = before.cpu_s.get(rank) if before is not None else None
        if used is not None and before is not None and earlier is not None and used >= earlier and sample.t > before.t:
            cpus.append((used - earlier) / (sample.t - before.t))
            put(result.cpu_use, name, cpus[-1])
    uses = [gpu.util for gpu in sample.gpus if gpu.util is not None]
    put(result.nodes, node, fmean(uses) if uses else sum(cpus) if cpus else None)
