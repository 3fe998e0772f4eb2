"""Step, loss and rate of a training from its log: the newest, and the curve of an attempt.

The expressions that find a step are the user's, so everything is bounded: bytes read, number and length of lines, and
the time of a search. An expression that is invalid or too slow is not used again. A log may have many gigabytes: for
the curve only a few places are read, and the times of given steps are found by bisection.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from hpc_launch.base.files import open_regular, read_tail
from hpc_launch.diagnose.word_of_end import word_of_end
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles
from hpc_launch.runs.records.node_records import watcher_samples
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of, progress_patterns

TAIL = 64 * 1024
MAX_LINES = 400
MAX_LINE = 2000

RATE_WINDOW = 20
"""Number of points that the rate is measured over."""


@dataclass(frozen=True)
class Progress:
    """Progress by the training's own log; None is 'not known'.

    `rate` is in steps per second, `eta_s` in seconds; `spacing` is the number of steps between the last two lines that
    show one; `said` is the `word_of_end` of a program that is over; `unmatched`: none of many lines shows a step,
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
    spacing = _spacing(steps) or before.spacing
    said = word_of_end(lines, lines.index(step.string)) if over and step is not None else None
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


def _spacing(steps: list[re.Match[str]]) -> int | None:
    """How many steps lie between the two newest lines that show one."""
    numbers = [number for match in steps if (number := integer(match, 1)) is not None]
    return next((later - earlier for later, earlier in pairwise(numbers) if earlier < later), None)


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


WINDOW = 32 << 10
"""Bytes before a place of the log that are searched for a step."""
BACK = 4
"""Number of earlier places that are searched where one shows no step."""

LEARNING_RATE = re.compile(r"(?i)\b(?:lr|learning[_ ]?rate)\b[\"']?[:= ]{0,3}([0-9.]{1,20}(?:e[-+]?[0-9]{1,3})?)")
"""As Lightning, Transformers, Megatron-LM and most loops print it beside the step."""
STEADY_S = 60.0
"""Imports and set-up write a few lines; what still writes after so long is the training."""

Growth = tuple[tuple[float, int], ...]
"""When the log had which size; times are seconds since the epoch, sizes bytes."""


class StepCurve:
    """The steps of one attempt by time. Reads the log when it is asked; never raises."""

    def __init__(
        self,
        attempt: AttemptFolder,
        plan: PlanRecord,
        growth: Iterable[tuple[float, int]],
        saves: Iterable[tuple[float, float]] = (),
    ) -> None:
        self._attempt = attempt
        self._patterns = progress_patterns(plan)
        self._steps: dict[int, int | None] = {}
        self._losses, self._rates = dict[int, float](), dict[int, float]()
        self._most = 0
        self.growth: Growth = _ascending(growth)
        self.saves = tuple(saves)
        """From when to when rank 0 saved."""

    @property
    def has_steps(self) -> bool:
        """Whether the job says how its log shows steps."""
        return "step" in self._patterns

    @property
    def steady(self) -> bool:
        """Whether the log kept growing for STEADY_S, without its last lines, which may be a traceback."""
        return len(self.growth) > 3 and self.growth[-2][0] - self.growth[0][0] >= STEADY_S

    def step(self, at: int) -> int | None:
        """The newest step when the log had grown for the time `at`."""
        for place in range(at, max(-1, at - BACK), -1):
            step = self._read(place)
            if step is not None:
                return step
        return None

    @property
    def last(self) -> int | None:
        """The newest step of all."""
        return self.step(len(self.growth) - 1) if self.growth else None

    def first(self) -> float | None:
        """When the first step began, as far as known: by the first line with a step and the pace of the next ones."""
        if not self.growth or self.last is None:
            return None
        at = self._bisect(0)
        time, step = self.growth[at][0], self.step(at)
        earliest, head = self.growth[at - 1][0] if at else None, first_step(self._attempt)
        if earliest is None or step is None or head is None or at + 1 >= len(self.growth):
            return time
        later = self.step(at + 1)
        pace = (self.growth[at + 1][0] - time) / (later - step) if later is not None and later > step else 0.0
        return max(earliest, time - pace * (step - head + 1))

    def reached(self, step: int, began: float | None = None) -> float | None:
        """When this step was shown, interpolated between two looks at the log; None where it was not.

        `began`: when the first step began.
        """
        last = self.last
        if last is None or last < step:
            return None
        at = self._bisect(step)
        time, here = self.growth[at][0], self.step(at)
        earlier, before = (self.growth[at - 1][0], self.step(at - 1)) if at else (None, None)
        if before is None and began is not None:
            head = first_step(self._attempt)
            earlier, before = began, head - 1 if head is not None else None
        if earlier is None or before is None or here is None or here <= before or step <= before:
            return time
        return earlier + (time - earlier) * (step - before) / (here - before)

    def points(self, most: int) -> list[tuple[float, int]]:
        """At most so many points of the curve: time and step."""
        found = [(self.growth[at][0], self.step(at)) for at in _spread(len(self.growth), most)]
        return [(time, step) for time, step in found if step is not None]

    def losses(self, most: int, *, rates: bool = False) -> list[tuple[int, float]]:
        """At most so many steps with their loss, or learning rate, by lines with both. `points` chooses the places."""
        values = self._rates if rates else self._losses
        steps = sorted(values)
        return [(steps[at], values[steps[at]]) for at in _spread(len(steps), most)]

    def _bisect(self, step: int) -> int:
        """The first point at which this step was reached; the last one reached it."""
        low, high = 0, len(self.growth) - 1
        while low < high:
            middle = (low + high) // 2
            here = self.step(middle)
            if here is not None and here >= step:
                high = middle
            else:
                low = middle + 1
        return low

    def _read(self, at: int) -> int | None:
        if at not in self._steps:
            size, over = self.growth[at][1], at == len(self.growth) - 1
            try:
                lines = tail_lines(self._attempt.first_log, WINDOW, before=size, over=over)
            except OSError:
                lines = []
            self._steps[at] = self._search(lines)
        return self._steps[at]

    def _search(self, lines: list[str]) -> int | None:
        steps, losses = self._patterns.get("step"), self._patterns.get("loss")
        found = [(match, line) for line in lines if (match := steps.search(line))] if steps is not None else []
        newest = newest_step([match for match, _ in found], self._most)
        self._most = max([self._most, *(integer(match, 2) or 0 for match, _ in found if match.re.groups > 1)])
        for match, line in found:
            step, shown = integer(match, 1), match.re.groups < 2 or integer(match, 2) == self._most
            for values, pattern in ((self._losses, losses), (self._rates, LEARNING_RATE)):
                value = number(seen) if pattern is not None and (seen := pattern.search(line)) else None
                if step is not None and value is not None and shown:
                    values[step] = value
        return integer(newest, 1) if newest is not None else None


def _spread(count: int, most: int) -> list[int]:
    """At most so many of the numbers below `count`, evenly spread, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)})


def _ascending(growth: Iterable[tuple[float, int]]) -> Growth:
    """The points by time, without those at which the log had not grown: it was rewritten, or clocks differ."""
    points = sorted(growth)
    return tuple(points[:1] + [new for old, new in pairwise(points) if new[1] > old[1]])
