"""Charts of a run as shapes in the units of an SVG image: attempts on a time axis, and curves over all attempts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from hpc_launch.performance.time_account import Interval, TimeAccount
from hpc_launch.view.format_values import duration, number

TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most so many round numbers from `low` to `high`."""
    span = high - low
    if not 0 < span / most < math.inf:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most)
    first = math.ceil(low / step)
    return [at * step for at in range(first, first + most + 2) if at * step <= high + 1e-9 * span]


def time_ticks(span: float, most: int = 8) -> list[float]:
    """At most about so many round times from 0 to `span` seconds."""
    days = 86400.0 * max(1, math.ceil(span / 86400 / most))
    step = next((float(step) for step in TIME_STEPS if span / step <= most), days)
    return [at * step for at in range(int(span / step) + 1)]


def time_label(seconds: float) -> str:
    """`0`, `0.5 s`, `1 m 30 s`, `2 h 30 m`."""
    return duration(seconds) if seconds >= 1 else f"{number(seconds)} s" if seconds else "0"


WIDTH, LEFT, RIGHT = 1000.0, 90.0, 16.0
ROW, MARGIN = 24.0, 30.0
HEIGHT = 220.0
FINEST = 2000
"""An interval shorter than this part of the axis is drawn as a part of the one before it."""

Curve = Sequence[tuple[float, float]]


@dataclass
class Chart:
    """What `page.html.j2` draws. Shapes have a class of `page.css`."""

    height: float
    width: float = WIDTH
    lines: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    """x1, y1, x2, y2 and class."""
    texts: list[tuple[float, float, str, str]] = field(default_factory=list)
    """x, y, anchor and text."""
    boxes: list[tuple[float, float, float, float, str, str]] = field(default_factory=list)
    """x, y, width, height, class and title."""
    curves: list[Curve] = field(default_factory=list)
    dots: list[tuple[float, float]] = field(default_factory=list)

    def tick(self, x: float, bottom: float, label: str) -> None:
        """A mark on the x axis."""
        self.lines.append((x, 0, x, bottom, "axis"))
        self.texts.append((x, bottom + 18, "middle", label))


def timeline(account: TimeAccount, labels: dict[int, str]) -> Chart:
    """The attempts as rows on a time axis, in the colours of the categories. `labels`: by number of the attempt."""
    begin, span = account.intervals[0].begin, account.wall_s
    place = _scale(0, span, LEFT, WIDTH - RIGHT)
    rows = {name: row * ROW for row, name in enumerate(labels)}
    chart = Chart(ROW * len(rows) + MARGIN)
    for at in time_ticks(span):
        chart.tick(place(at), chart.height - MARGIN, time_label(at))
    chart.texts += [(LEFT - 8, y + 16, "end", labels[name]) for name, y in rows.items()]
    for part in coarse(account.intervals, span / FINEST):
        low, high = place(part.begin - begin), place(part.end - begin)
        phase = f" ({part.phase.replace('_', ' ')})" if part.phase else ""
        title = f"{part.category}{phase}, {duration(part.seconds)}, {duration(part.begin - begin)} after the beginning"
        chart.boxes.append((low, rows[part.attempt] + 4, max(high - low, 0.4), ROW - 8, part.category, title))
    return chart


def coarse(intervals: Iterable[Interval], finest: float) -> list[Interval]:
    """The intervals without those that are too short to see. The time of these goes to the one before."""
    result: list[Interval] = []
    for part in intervals:
        same = bool(result) and result[-1].attempt == part.attempt
        if same and (part.seconds < finest or (result[-1].category, result[-1].phase) == (part.category, part.phase)):
            result[-1] = replace(result[-1], end=part.end)
        else:
            result.append(part)
    return result


FURTHEST = 1e300
"""Values beyond this are not drawn: their differences may be infinite."""


def curves(
    lines: Sequence[Curve], *, label: Callable[[float], str], begins: Sequence[float] = (), times: bool
) -> Chart | None:
    """One line for each attempt; None for less than two points.

    `times`: both axes begin at 0, and the x axis is a time; `begins`: where attempts begin on it.
    """
    lines = [[(x, y) for x, y in line if abs(y) < FURTHEST] for line in lines]
    xs, ys = [x for line in lines for x, _ in line], [y for line in lines for _, y in line]
    if len(set(xs)) < 2:
        return None
    left = 0.0 if times else min(xs)
    low, high = 0.0 if times else min(ys), max(ys)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    across, up = _scale(left, max(xs), LEFT, WIDTH - RIGHT), _scale(low, high, HEIGHT - MARGIN - 6, 8)
    chart = Chart(HEIGHT)
    for x in time_ticks(max(xs)) if times else ticks(left, max(xs)):
        chart.tick(across(x), HEIGHT - MARGIN, time_label(x) if times else number(x))
    for y in ticks(low, high, 5):
        chart.lines.append((LEFT, up(y), WIDTH - RIGHT, up(y), "axis"))
        chart.texts.append((LEFT - 8, up(y) + 4, "end", label(y)))
    chart.lines += [(across(x), 0, across(x), HEIGHT - MARGIN, "begin") for x in begins if left <= x <= max(xs)]
    drawn = [[(across(x), up(y)) for x, y in line] for line in lines]
    chart.curves += [line for line in drawn if len(line) > 1]
    chart.dots += [line[0] for line in drawn if len(line) == 1]
    return chart


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    span = high - low
    return lambda value: first + (last - first) * ((value - low) / span if span > 0 else 0.0)
