"""The newest step, loss and rate of a training, from the end of its log.

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
from hpc_launch.runs.records.node_records import watcher_samples
from hpc_launch.runs.records.plan_record import plan_of, progress_patterns

TAIL = 64 * 1024
MAX_LINES = 400
MAX_LINE = 2000

RATE_WINDOW = 20
"""Number of points that the rate is measured over."""

_WORD_OF_END = re.compile(
    r"(?i)early[ _-]?stopp(?!\w* counter)|stopp\w* early|signaling Trainer to stop|\btrain_runtime\b"
    r"|\btraining (?:is |has )?(?:been )?(?:completed?|finished|done)\b"
)
"""How a program says that it was done, or stopped early on purpose; of programs, Lightning's callback
(pytorch/callbacks/early_stopping.py) and Transformers' Trainer."""


@dataclass(frozen=True)
class Progress:
    """Progress by the training's own log; None is 'not known'.

    `rate` is in steps per second, `eta_s` in seconds; `spacing` is the number of steps between the last two lines that
    show one; `said` is the word of its end of a program that is over; `unmatched`: none of many lines shows a step,
    although the job says how they would; `saves`: the job says where its checkpoints are.
    """

    step: int | None = None
    total: int | None = None
    loss: float | None = None
    rate: float | None = None
    eta_s: float | None = None
    spacing: int | None = None
    said: str | None = None
    unmatched: bool = False
    saves: bool = False


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
            plan = plan_of(attempt)
            log = self._logs[attempt.path] = _LogState(progress_patterns(plan))
            log.last = Progress(saves=plan is not None and plan.checkpoint is not None)
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
        with open_regular(attempt.first_log) as stream:
            head = stream.read(TAIL).decode("utf-8", errors="replace").replace("\r", "\n").split("\n")
    except OSError:
        return None
    lines = [line[:MAX_LINE] for line in head[:-1] if line][:MAX_LINES]
    found = next(_matches(progress_patterns(plan_of(attempt)).get("step"), lines), None)
    return integer(found, 1) if found else None


def tail_lines(path: Path, size: int = TAIL, *, before: int | None = None, over: bool = False) -> list[str]:
    """The lines in the last `size` bytes, or those up to byte `before`, newest first, each cut to MAX_LINE.

    A last line without a newline may be incomplete: it is left out, unless nothing more will be written (`over`).
    Raises OSError.
    """
    data, begin = read_tail(path, size, before=before)
    # A carriage return ends a line as well: progress bars write no newlines.
    lines = data.decode("utf-8", errors="replace").replace("\r", "\n").split("\n")[1 if begin else 0 :]
    return [line[:MAX_LINE] for line in reversed(lines if over else lines[:-1]) if line][:MAX_LINES]


def _read(log: _LogState, attempt: AttemptFolder, at: float, *, over: bool) -> Progress:
    lines = tail_lines(attempt.first_log, over=over)
    steps = list(_matches(log.patterns.get("step"), lines))
    step = newest_step(steps, log.last.total or 0)
    loss = next(_matches(log.patterns.get("loss"), lines), None)
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
    numbers = [shown for match in steps if (shown := integer(match, 1)) is not None]
    spacing = next((later - earlier for later, earlier in pairwise(numbers) if earlier < later), before.spacing)
    # The newest lines come first; a word just before the last step counts, too.
    last_lines = lines[: lines.index(step.string) + 5] if over and step is not None else []
    said = next((line.strip() for line in last_lines if _WORD_OF_END.search(line)), None)
    eta_s = left / rate if left is not None and rate else None
    silent = "step" in log.patterns and reached is None and (over or len(lines) > MAX_LINES // 2)
    unmatched = silent and first_step(attempt) is None
    return Progress(reached, total, value, rate, eta_s, spacing, said, unmatched, before.saves)


def _matches(pattern: re.Pattern[str] | None, lines: list[str]) -> Iterator[re.Match[str]]:
    """The matches in these lines, in their order."""
    return filter(None, map(pattern.search, lines)) if pattern is not None else iter(())


def newest_step(steps: list[re.Match[str]], most: int) -> re.Match[str] | None:
    """The newest step of the loop with the most steps (`most` so far): an evaluation may print its own the same way."""
    newest = None
    for match in steps:
        total = (integer(match, 2) if match.re.groups > 1 else None) or most
        if total > most or (newest is None and total == most):
            newest, most = match, total
    return newest


def _sampled(log: _LogState, attempt: AttemptFolder) -> tuple[float, int] | None:
    """The time and the step of the oldest of the watcher's newest samples that follows a step; None for none."""
    files, steps = dict(attempt.watcher_files()), log.patterns.get("step")
    for sample in list(watcher_samples(files[0]))[-RATE_WINDOW:] if 0 in files else ():
        size, written = sample.log or (0, 0.0)
        match = next(_matches(steps, tail_lines(attempt.first_log, before=size)), None) if size else None
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
