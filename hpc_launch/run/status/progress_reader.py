"""Step, loss and rate of a training, from its own log lines and the job file's regular expressions.

The expressions are the user's, so everything is bounded: bytes read, lines and their length, and the time a search may
take. An expression that is invalid or too slow is not used again.
"""

from __future__ import annotations

import math
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from hpc_launch.base.files import read_json, without_waiting
from hpc_launch.run.layout import AttemptFolder
from hpc_launch.run.records.attempt_files import AttemptFiles
from hpc_launch.run.status.run_status import Progress

TAIL = 64 * 1024
MOST_LINES = 400
LONGEST_LINE = 2000
SEARCH_S = 0.5
"""How long one search through the tail may take."""

RATE_WINDOW = 20
"""Observations that the rate is measured over."""


class _TooSlowError(Exception):
    """A search ran out of its time."""


@dataclass
class _FollowedLog:
    """What is remembered of one attempt's log."""

    patterns: dict[str, re.Pattern[str]]
    stamp: tuple[int, int] | None = None
    first: int | None = None
    points: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW))
    last: Progress = field(default_factory=Progress)


class ProgressReader:
    """Reads the newest progress again and again, and the log only when it grew."""

    def __init__(self) -> None:
        self._watched: dict[Path, _FollowedLog] = {}

    def read(self, files: AttemptFiles, started: float | None) -> Progress:
        """The newest progress in the log of node 0. `started`: when the script began, for a first rate.

        Never raises; what cannot be read or found is not known.
        """
        attempt = files.attempt
        watched = self._watched.get(attempt.path)
        if watched is None:
            watched = self._watched[attempt.path] = _FollowedLog(_patterns(attempt))
        try:
            status = attempt.first_log.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != watched.stamp and watched.patterns:
                watched.last = _look(watched, attempt.first_log, status.st_mtime, started)
                watched.stamp = stamp
        except OSError:
            pass
        return self._with_what_was_known(attempt, watched.last)

    def _with_what_was_known(self, attempt: AttemptFolder, progress: Progress) -> Progress:
        """With the last step and the spacing that the attempt before showed, where this one has not shown them (yet):
        it may go on so late, or end so early, that its own log does not tell."""
        if (progress.total is not None and progress.spacing is not None) or attempt.number < 2:
            return progress
        before = AttemptFolder(attempt.path.parent / f"{attempt.number - 1:03d}")
        known = self.read(AttemptFiles(before), None)
        return replace(progress, total=progress.total or known.total, spacing=progress.spacing or known.spacing)


def first_step(attempt: AttemptFolder) -> int | None:
    """The first step that the log of an attempt shows; None while it shows none."""
    try:
        return _first_step(_FollowedLog(_patterns(attempt)), attempt.first_log)
    except OSError:
        return None


def tail_lines(path: Path, most: int = TAIL) -> list[str]:
    """The lines in the last `most` bytes, newest first, each cut to LONGEST_LINE. Raises OSError."""
    with open(path, "rb", opener=without_waiting) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - most))
        data = stream.read(most)
    # A carriage return ends a line as well: progress bars write nothing else.
    lines = data.decode("utf-8", errors="replace").replace("\r", "\n").split("\n")
    if size > most:
        lines = lines[1:]
    # The last piece may be half written still.
    return [line[:LONGEST_LINE] for line in reversed(lines[:-1]) if line][:MOST_LINES]


def _look(watched: _FollowedLog, path: Path, at: float, started: float | None) -> Progress:
    lines = tail_lines(path)
    step = _newest(watched, "step", lines)
    loss = _newest(watched, "loss", lines)
    before = watched.last
    number = _whole(step, 1) if step else before.step
    total = (_whole(step, 2) if step and step.re.groups > 1 else None) or before.total
    value = _number(loss) if loss else before.loss
    if number is not None and step is not None:
        if watched.first is None:
            watched.first = _first_step(watched, path)
        _observe(watched, at, number, started)
    rate = _rate(watched)
    left = max(0, total - number) if total is not None and number is not None else None
    spacing = _spacing(watched, lines) or before.spacing
    return Progress(number, total, value, rate, left / rate if left is not None and rate else None, spacing)


def _spacing(watched: _FollowedLog, lines: list[str]) -> int | None:
    """How many steps the newest line that shows one is ahead of the one before it."""
    pattern, newest = watched.patterns.get("step"), None
    if pattern is None:
        return None
    try:
        with _limited(SEARCH_S):
            for line in lines:
                match = pattern.search(line)
                step = _whole(match, 1) if match else None
                if step is None:
                    continue
                if newest is not None and step < newest:
                    return newest - step
                newest = step
    except _TooSlowError:
        del watched.patterns["step"]
    return None


def _observe(watched: _FollowedLog, at: float, step: int, started: float | None) -> None:
    points = watched.points
    if not points and started is not None and watched.first is not None and watched.first < step and started < at:
        points.append((started, watched.first))
    if points and step < points[-1][1]:
        points.clear()
    if not points or (at > points[-1][0] and step > points[-1][1]):
        points.append((at, step))


def _rate(watched: _FollowedLog) -> float | None:
    if len(watched.points) < 2:
        return None
    (t0, s0), (t1, s1) = watched.points[0], watched.points[-1]
    return (s1 - s0) / (t1 - t0) if t1 > t0 and s1 > s0 else None


def _first_step(watched: _FollowedLog, path: Path) -> int | None:
    """The first step in the head of the log: after a resume it is far from 0, and the rate must not count that."""
    with open(path, "rb", opener=without_waiting) as stream:
        head = stream.read(TAIL).decode("utf-8", errors="replace").replace("\r", "\n").split("\n")
    found = _newest(watched, "step", [line[:LONGEST_LINE] for line in head[:-1] if line][:MOST_LINES])
    return _whole(found, 1) if found else None


def _newest(watched: _FollowedLog, name: str, lines: list[str]) -> re.Match[str] | None:
    pattern = watched.patterns.get(name)
    if pattern is None:
        return None
    try:
        with _limited(SEARCH_S):
            return next((match for line in lines if (match := pattern.search(line))), None)
    except _TooSlowError:
        del watched.patterns[name]
        return None


def _patterns(attempt: AttemptFolder) -> dict[str, re.Pattern[str]]:
    # An attempt that began by a requeue has no plan of its own: it runs the one before it.
    numbers = range(attempt.number, 0, -1)
    plans = (read_json(AttemptFolder(attempt.path.with_name(f"{number:03d}")).plan) for number in numbers)
    wanted = next((plan for plan in plans if plan is not None), {}).get("progress")
    result: dict[str, re.Pattern[str]] = {}
    for name in ("step", "loss"):
        text = wanted.get(name) if isinstance(wanted, dict) else None
        if not isinstance(text, str):
            continue
        try:
            pattern = re.compile(text)
        except (re.error, RecursionError, OverflowError):
            continue
        if pattern.groups:
            result[name] = pattern
    return result


def _whole(match: re.Match[str], group: int) -> int | None:
    text = (match[group] or "").replace(",", "").replace("_", "")
    return int(text) if text.isdecimal() and len(text) < 18 else None


def _number(match: re.Match[str]) -> float | None:
    try:
        value = float(match[1] or "")
    except ValueError:
        return None
    # JSON has no word for nan and inf.
    return value if math.isfinite(value) else None


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End the block with _TooSlowError after `seconds`.

    `re` cannot be interrupted but by a signal, and only the main thread gets those; elsewhere the bounds on lines
    have to do. Somebody else's timer is left alone.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
