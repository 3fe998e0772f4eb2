"""Step, loss and rate of a training from its log, and how far its start is from the watchers' events.

The expressions that find a step are the user's, so everything is bounded: bytes read, number and length of lines, and
the time of a search. An expression that is invalid or too slow is not used again.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from hpc_launch.base.files import open_regular, read_tail
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles
from hpc_launch.runs.records.node_records import start_events, watcher_samples
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of, progress_patterns
from hpc_launch.runs.status.run_status import Progress
from hpc_launch.runs.status.startup_summary import (
    LAST,
    PREPARATIONS,
    Group,
    History,
    NodeStart,
    Startup,
    history,
    summary,
)

TAIL = 64 * 1024
MAX_LINES = 400
MAX_LINE = 2000

RATE_WINDOW = 20
"""Number of points that the rate is measured over."""


@dataclass
class _LogState:
    """The state of one attempt's log between reads."""

    patterns: dict[str, re.Pattern[str]]
    stamp: tuple[int, int, bool] | None = None
    points: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW))
    last: Progress = field(default_factory=Progress)


class ProgressReader:
    """Reads the newest progress repeatedly, and the log only when it has grown."""

    def __init__(self) -> None:
        self._logs: dict[Path, _LogState] = {}

    def read(self, files: AttemptFiles) -> Progress:
        """The newest progress in the log of node 0. Never raises; what cannot be read is None.

        The rate counts from the first step, not from the start of the script: at the first look by the watcher's
        samples, which tell when the log had which size.
        """
        progress = self._own(files)
        earlier = files.attempt.run.attempts_before(files.attempt)
        # What this attempt's log does not show (yet).
        while progress.total is None or progress.spacing is None:
            before = next(earlier, None)
            if before is None:
                break
            known = self._own(AttemptFiles(before))
            progress = replace(progress, total=progress.total or known.total, spacing=progress.spacing or known.spacing)
        return progress

    def _own(self, files: AttemptFiles) -> Progress:
        attempt = files.attempt
        log = self._logs.get(attempt.path)
        if log is None:
            log = self._logs[attempt.path] = _LogState(progress_patterns(plan_of(attempt)))
        try:
            status = attempt.first_log.stat()
            over = files.end is not None or files.final is not None
            stamp = (status.st_mtime_ns, status.st_size, over)
            if stamp != log.stamp and log.patterns:
                log.last = _read(log, attempt, status.st_mtime, over=over)
                log.stamp = stamp
        except OSError:
            pass
        return log.last


def first_step(attempt: AttemptFolder) -> int | None:
    """The first step in the log of an attempt; None while there is none."""
    try:
        return _first_step(_LogState(progress_patterns(plan_of(attempt))), attempt)
    except OSError:
        return None


def tail_lines(path: Path, size: int = TAIL, *, before: int | None = None, over: bool = False) -> list[str]:
    """The lines in the last `size` bytes, or those up to byte `before`, newest first, each cut to MAX_LINE.

    A last line without a newline may be incomplete: it is left out, unless nothing more will be written (`over`).
    Raises OSError.
    """
    data, begin = read_tail(path, size, before=before)
    # A carriage return ends a line as well: progress bars write no newlines.
    lines = data.decode("utf-8", errors="replace").replace("\r", "\n").split("\n")
    if begin:
        lines = lines[1:]
    return [line[:MAX_LINE] for line in reversed(lines if over else lines[:-1]) if line][:MAX_LINES]


def _read(log: _LogState, attempt: AttemptFolder, at: float, *, over: bool) -> Progress:
    lines = tail_lines(attempt.first_log, over=over)
    steps = _steps(log, lines)
    step = newest_step(steps, log.last.total or 0)
    loss = _newest(log, "loss", lines)
    before = log.last
    reached = integer(step, 1) if step else before.step
    total = (integer(step, 2) if step and step.re.groups > 1 else None) or before.total
    value = number(loss) if loss else before.loss
    if reached is not None and step is not None:
        if not log.points:
            earlier = _sampled(log, attempt)
            log.points.extend([earlier] if earlier is not None and earlier[1] < reached and earlier[0] < at else [])
        _add_point(log, at, reached)
    rate = _rate(log)
    left = max(0, total - reached) if total is not None and reached is not None else None
    spacing = _spacing(steps) or before.spacing
    return Progress(reached, total, value, rate, left / rate if left is not None and rate else None, spacing)


def _steps(log: _LogState, lines: list[str]) -> list[re.Match[str]]:
    """Where lines show a step, in their order."""
    pattern = log.patterns.get("step")
    return list(filter(None, map(pattern.search, lines))) if pattern is not None else []


def newest_step(steps: list[re.Match[str]], most: int) -> re.Match[str] | None:
    """The newest step of the loop with the most steps (`most` so far): an evaluation may print its own the same way."""
    newest = None
    for match in steps:
        total = (integer(match, 2) if match.re.groups > 1 else None) or most
        if total > most or (newest is None and total == most):
            newest, most = match, total
    return newest


def _spacing(steps: list[re.Match[str]]) -> int | None:
    """How many steps lie between the two newest lines that show one."""
    numbers = [number for match in steps if (number := integer(match, 1)) is not None]
    return next((later - earlier for later, earlier in pairwise(numbers) if earlier < later), None)


def _sampled(log: _LogState, attempt: AttemptFolder) -> tuple[float, int] | None:
    """The time and the step of the oldest of the watcher's newest samples that follows a step; None for none."""
    files = dict(attempt.watcher_files())
    for sample in list(watcher_samples(files[0]))[-RATE_WINDOW:] if 0 in files else ():
        size, written = sample.log or (0, 0.0)
        match = _newest(log, "step", tail_lines(attempt.first_log, before=size)) if size else None
        step = integer(match, 1) if match else None
        if step is not None:
            return written, step
    return None


def _add_point(log: _LogState, at: float, step: int) -> None:
    points = log.points
    if points and step < points[-1][1]:
        points.clear()
    if not points or (at > points[-1][0] and step > points[-1][1]):
        points.append((at, step))


def _rate(log: _LogState) -> float | None:
    if len(log.points) < 2:
        return None
    (t0, s0), (t1, s1) = log.points[0], log.points[-1]
    return (s1 - s0) / (t1 - t0) if t1 > t0 and s1 > s0 else None


def _first_step(log: _LogState, attempt: AttemptFolder) -> int | None:
    """The first step in the head of the log."""
    with open_regular(attempt.first_log) as stream:
        head = stream.read(TAIL).decode("utf-8", errors="replace").replace("\r", "\n").split("\n")
    found = _newest(log, "step", [line[:MAX_LINE] for line in head[:-1] if line][:MAX_LINES])
    return integer(found, 1) if found else None


def _newest(log: _LogState, name: str, lines: list[str]) -> re.Match[str] | None:
    pattern = log.patterns.get(name)
    return next(filter(None, map(pattern.search, lines)), None) if pattern is not None else None


def integer(match: re.Match[str], group: int) -> int | None:
    """The integer in a group, without separators of thousands; None for none."""
    text = (match[group] or "").replace(",", "").replace("_", "")
    return int(text) if text.isdecimal() and len(text) < 18 else None


def number(match: re.Match[str]) -> float | None:
    """The finite number in the first group; None for none."""
    try:
        value = float(match[1] or "")
    except ValueError:
        return None
    # JSON cannot express nan and inf.
    return value if math.isfinite(value) else None


class StartupReader:
    """Reads the start of attempts repeatedly."""

    def __init__(self) -> None:
        self._histories: dict[Path, tuple[int, History]] = {}
        self._plans: dict[Path, PlanRecord] = {}
        self._over: set[Path] = set()

    def read(self, files: AttemptFiles) -> Startup | None:
        """The start of an attempt; None where nothing is known of it, or it is over. Never raises."""
        attempt = files.attempt
        if files.start is None or attempt.path in self._over:
            return None
        if attempt.path not in self._plans:
            self._plans[attempt.path] = plan_of(attempt) or PlanRecord()
        plan = self._plans[attempt.path]
        has_steps = "step" in progress_patterns(plan)
        if not plan.phases or (has_steps and first_step(attempt) is not None):
            self._over.add(attempt.path)
            return None
        nodes = tuple(self._nodes(files, plan))
        preparation = PREPARATIONS.get(files.start.phase or "")
        if preparation is not None and not any(node.history for node in nodes):
            names = tuple(node.name for node in nodes)
            return Startup((Group("", names, files.start.ended),), plan.container, preparation)
        if not has_steps and all(node.mark == LAST for node in nodes):
            self._over.add(attempt.path)
        start = files.start
        began = start.ended if start.ended is not None else start.started  # done with node check and staging
        return summary(nodes, began=began, runtime=plan.container, has_steps=has_steps, output=files.output)

    def _nodes(self, files: AttemptFiles, plan: PlanRecord) -> Iterator[NodeStart]:
        watched = dict(files.attempt.watcher_files())
        local = plan.scheduler == "local"
        names = [f"node {number}" for number in range(plan.nodes or 1)] if local else files.nodes
        written = _with_output(files.attempt) if len(watched) < len(names) else set()
        for number, name in enumerate(names):
            if number in watched:
                yield NodeStart(name, self._history(watched[number], plan.processes_per_node or 1))
            elif number not in written:  # what writes has started, if without a watcher
                yield NodeStart(name)

    def _history(self, path: Path, processes: int) -> History:
        kept = self._histories.get(path)
        if kept is not None and kept[1] and kept[1][-1][1] == LAST:
            return kept[1]
        size = _size(path)
        if kept is None or kept[0] != size:
            kept = self._histories[path] = size, history(start_events(path), processes)
        return kept[1]


def _with_output(attempt: AttemptFolder) -> set[int]:
    """The numbers of the nodes that have written anything."""
    return {number for number, _, path in attempt.node_logs() if _size(path)}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
