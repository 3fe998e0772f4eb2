"""Where the wall time of a run went: one timeline of intervals by category that adds up to the wall time. Pure.

The timeline is built from the beginning of the run to its end: each record extends it to a later time, and a record
that lies before what is there already adds nothing. Records that contradict each other, such as those of two clocks,
can therefore shift time between categories, but never count it twice or lose it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from statistics import median
from typing import Literal, get_args

Category = Literal[
    "queued", "starting", "training", "repeated", "checkpointing", "stalled", "detecting", "restarting", "ending"
]
CATEGORIES: tuple[Category, ...] = get_args(Category)

STALLED_S = 60.0
"""A training that writes no output for so long, and for STALLED_TIMES as long as usual, is stalled."""
STALLED_TIMES = 5.0

BUSY: frozenset[Category] = frozenset({"training", "repeated"})


@dataclass(frozen=True)
class Interval:
    """A part of a run's time, in seconds since the epoch. `phase`: of a start (docs/explanation/how-a-run-works.md)."""

    begin: float
    end: float
    category: Category
    attempt: int = 0
    phase: str | None = None

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


@dataclass(frozen=True)
class AttemptTimes:
    """What the records of one attempt tell of its time. Times are seconds since the epoch, None where unknown."""

    number: int
    same_job: bool = False
    """Whether it began inside the job of the attempt before it."""
    requeued: bool = False
    """Whether Slurm requeued that job for it."""
    submitted: float | None = None
    began: float | None = None
    """When its job got its nodes, or its script began."""
    phases: tuple[tuple[float, str], ...] = ()
    """The phases of its start, and when each began."""
    trained: float | None = None
    """When its first step began, or its training where steps are not known."""
    caught_up: float | None = None
    """When it reached the furthest step of the attempts before it."""
    growth: tuple[float, ...] = ()
    """When its log grew."""
    outages: tuple[tuple[float, float], ...] = ()
    """From when to when the training waited for a role that was started again."""
    saves: tuple[tuple[float, float], ...] = ()
    """From when to when the training saved."""
    failed: float | None = None
    """When the first process or node failed, of an attempt that did not end by itself or by request."""
    silent_since: float | None = None
    """Since when there was no sign of life before a hang was detected."""
    hang_found: float | None = None
    stopped: float | None = None
    """When it was asked to end, or made its last step, of an attempt that ended by itself or by request."""
    ended: float | None = None
    """When its script ended, or, without a record of that, its job."""
    job_ended: float | None = None


@dataclass(frozen=True)
class TimeAccount:
    """The timeline of a run. The intervals follow each other without gaps."""

    intervals: tuple[Interval, ...]

    @property
    def wall_s(self) -> float:
        """The wall time of the run, from its creation to its end or to now."""
        return self.intervals[-1].end - self.intervals[0].begin if self.intervals else 0.0

    def seconds(self, category: Category) -> float:
        """The time in a category."""
        return sum(part.seconds for part in self.intervals if part.category == category)

    def by_category(self) -> dict[Category, float]:
        """The time in each category, in seconds."""
        return {category: self.seconds(category) for category in CATEGORIES}

    def phases(self) -> dict[str, float]:
        """The time in each phase of all starts, in seconds."""
        found: dict[str, float] = {}
        for part in self.intervals:
            if part.category == "starting" and part.phase is not None:
                found[part.phase] = found.get(part.phase, 0.0) + part.seconds
        return found

    @property
    def goodput(self) -> float | None:
        """The share of the allocated time (all but queued) in productive training; None before the first job."""
        allocated = self.wall_s - self.seconds("queued")
        return self.seconds("training") / allocated if allocated > 0 else None


def time_account(attempts: Sequence[AttemptTimes], begin: float, end: float, *, continues: bool = False) -> TimeAccount:
    """The account of a run that began and ended, or is now, at these times.

    `continues`: the last attempt is over, and another follows.
    """
    timeline = _Timeline(begin, max(begin, end))
    for at, attempt in enumerate(attempts):
        _add(timeline, attempt, attempts[at + 1] if at + 1 < len(attempts) else None)
    if attempts and attempts[-1].ended is not None:
        last = attempts[-1]
        timeline.until(None if continues else last.job_ended, "ending", last.number)
        timeline.until(timeline.end, "restarting" if continues else "ending", last.number)
    timeline.until(timeline.end, "queued", attempts[-1].number if attempts else 0)
    return TimeAccount(tuple(timeline.parts))


class _Timeline:
    """Intervals from `begin` on, up to where the timeline is filled."""

    def __init__(self, begin: float, end: float) -> None:
        self.now, self.end = begin, end
        self.parts: list[Interval] = []

    def until(self, time: float | None, category: Category, attempt: int, phase: str | None = None) -> None:
        """Fill the timeline up to this time. A time that is unknown or over changes nothing."""
        if time is None:
            return
        time = min(time, self.end)
        if time > self.now:
            self.parts.append(Interval(self.now, time, category, attempt, phase))
            self.now = time

    def overlay(
        self,
        spans: Iterable[tuple[float, float]],
        category: Category,
        attempt: int,
        over: frozenset[Category] = BUSY,
    ) -> None:
        """Change the category of what lies in one of the spans and has one of the categories `over`.

        There may be a span for each of many steps, so both lists are passed through once, by time.
        """
        left = merged(((begin, end) for begin, end in spans if end > begin), 0.0)
        result: list[Interval] = []
        at = 0
        for part in self.parts:
            if part.attempt != attempt or part.category not in over:
                result.append(part)
                continue
            begin = part.begin
            while at < len(left) and left[at][1] <= begin:
                at += 1
            inside = at
            while inside < len(left) and left[inside][0] < part.end:
                low, high = max(begin, left[inside][0]), min(part.end, left[inside][1])
                result += [replace(part, begin=begin, end=low)] if low > begin else []
                result.append(Interval(low, high, category, attempt))
                begin, inside = high, inside + 1
            result += [replace(part, begin=begin)] if part.end > begin else []
        self.parts = result


def _add(timeline: _Timeline, attempt: AttemptTimes, following: AttemptTimes | None) -> None:
    number = attempt.number
    if attempt.same_job:
        timeline.until(attempt.began, "queued" if attempt.requeued else "restarting", number)
    else:
        timeline.until(attempt.submitted, "restarting" if timeline.parts else "queued", number)
    ended = attempt.ended if attempt.ended is not None else _superseded(attempt, following)
    last = ended if ended is not None else timeline.end
    timeline.until(_earliest(attempt.began, last), "queued", number)
    if attempt.began is not None:
        _add_run(timeline, attempt, last, over=ended is not None)
    else:
        timeline.until(last, "queued", number)


def _superseded(attempt: AttemptTimes, following: AttemptTimes | None) -> float | None:
    """When an attempt without a record of its end was over at the latest: the next one was submitted, or began.

    A job that was submitted before the last sign of this attempt waited for it.
    """
    if following is None:
        return None
    signs = (attempt.submitted, attempt.began, attempt.trained, attempt.failed, attempt.hang_found)
    known = max((time for time in (*signs, *attempt.growth[-1:]) if time is not None), default=None)
    times = (None if following.same_job else following.submitted, following.began)
    return next((time for time in times if time is not None and (known is None or time >= known)), known)


def _add_run(timeline: _Timeline, attempt: AttemptTimes, last: float, *, over: bool) -> None:
    """From when the job got its nodes to when the attempt was over."""
    number = attempt.number
    trained = attempt.trained
    broke = _earliest(attempt.silent_since, attempt.failed)
    stop = _earliest(broke, attempt.stopped, last)
    begun = _earliest(trained, stop)
    phase: str | None = None
    for time, name in sorted(attempt.phases, key=itemgetter(0)):
        timeline.until(_earliest(time, begun), "starting", number, phase)
        phase = name
    timeline.until(begun, "starting", number, phase)
    if trained is not None:
        if attempt.caught_up is not None:
            timeline.until(_earliest(attempt.caught_up, stop), "repeated", number)
        timeline.until(stop, "training", number)
        timeline.overlay(_silences(attempt, timeline.now), "stalled", number)
        timeline.overlay(attempt.outages, "restarting", number, BUSY | {"stalled"})
    if attempt.hang_found is not None:
        timeline.until(_earliest(attempt.hang_found, last), "stalled", number)
    if over:
        timeline.until(last, "ending" if broke is None else "detecting", number)
    timeline.overlay(attempt.saves, "checkpointing", number, BUSY | {"stalled", "ending"})


def _silences(attempt: AttemptTimes, until: float) -> Iterator[tuple[float, float]]:
    """When the training wrote far longer nothing than usual."""
    times = sorted(time for time in attempt.growth if time <= until)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    if not gaps:
        return
    usual = median(gaps)
    limit = max(STALLED_S, STALLED_TIMES * usual)
    for time, following in zip(times, [*times[1:], until], strict=True):
        if following - time > limit:
            yield time + usual, following


def _earliest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)


def merged(spans: Iterable[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Spans that are at most `gap` seconds apart, as one; each must not end before it begins."""
    result: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if result and begin - result[-1][1] <= gap:
            result[-1] = result[-1][0], max(result[-1][1], end)
        else:
            result.append((begin, end))
    return result
