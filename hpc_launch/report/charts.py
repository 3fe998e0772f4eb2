"""Charts of a run as shapes in the units of an SVG image: attempts on a time axis, shares, curves and heat maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean

from hpc_launch.performance.time_account import Interval, TimeAccount
from hpc_launch.view.format_values import cut, duration, number

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


WIDTH, LEFT, RIGHT = 1000.0, 90.0, 36.0
ROW, TOP, MARGIN = 24.0, 24.0, 46.0
"""Height of a row, and the room for the title of the y axis and for the x axis with its title."""
HEIGHT = 260.0
FINEST = 1000
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
    curves: list[tuple[str, Curve]] = field(default_factory=list)
    """Class and points."""
    dots: list[tuple[float, float]] = field(default_factory=list)
    cells: list[tuple[str, str]] = field(default_factory=list)
    """Class and path of all cells of one level."""

    def x_axis(self, places: Mapping[float, str], title: str, top: float = 0.0) -> None:
        """Marks with their labels by place, and the title with its unit."""
        bottom = self.height - MARGIN
        for x, label in places.items():
            self.lines.append((x, top, x, bottom, "axis"))
            self.texts.append((x, bottom + 18, "middle", label))
        self.texts.append((self.width - RIGHT, bottom + 38, "end", title))


SINCE = "time since the run was created"


def timeline(account: TimeAccount, labels: dict[int, str]) -> Chart:
    """The attempts as rows on a time axis, in the colours of the categories. `labels`: by number of the attempt."""
    begin, span = account.intervals[0].begin, account.wall_s
    place = _scale(0, span, LEFT, WIDTH - RIGHT)
    rows = {name: row * ROW for row, name in enumerate(labels)}
    chart = Chart(ROW * len(rows) + MARGIN)
    chart.x_axis({place(at): time_label(at) for at in time_ticks(span)}, SINCE)
    chart.texts += [(LEFT - 8, y + 16, "end", labels[name]) for name, y in rows.items()]
    for part in coarse(account.intervals, span / FINEST):
        low, high = place(part.begin - begin), place(part.end - begin)
        phase = f" ({part.phase.replace('_', ' ')})" if part.phase else ""
        title = f"{part.category}{phase}, {duration(part.seconds)}, {duration(part.begin - begin)} after the beginning"
        chart.boxes.append((low, rows[part.attempt] + 4, max(high - low, 0.4), ROW - 8, part.category, title))
    return chart


def share_bar(account: TimeAccount) -> Chart:
    """The time of the jobs as one bar. Each part that is wide enough has the number of its category below it."""
    chart, left, used = Chart(ROW + 22), 0.0, account.wall_s - account.seconds("queued")
    for place, (category, spent) in enumerate(account.by_category().items()):
        width = chart.width * spent / used if category != "queued" and used > 0 else 0.0
        if width:
            chart.boxes.append((left, 2, width, ROW, category, f"{category}, {duration(spent)}"))
        if width >= 18:
            chart.texts.append((left + width / 2, ROW + 18, "middle", str(place)))
        left += width
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
    lines: Sequence[Curve],
    *,
    label: Callable[[float], str],
    begins: Sequence[float] = (),
    saves: Sequence[float] = (),
    times: bool,
    title: str = "",
    across: str = "step",
    kinds: Sequence[str] = (),
) -> Chart | None:
    """One line for each attempt; None for less than two points.

    `times`: both axes begin at 0, and the x axis is a time; `begins`: where attempts begin on it; `saves`: where they
    saved a checkpoint; `title` and `across`: of the axes, with their units; `kinds`: further classes of the lines.
    """
    lines = [[(x, y) for x, y in line if abs(y) < FURTHEST] for line in lines]
    xs, ys = [x for line in lines for x, _ in line], [y for line in lines for _, y in line]
    if len(set(xs)) < 2:
        return None
    left = 0.0 if times else min(xs)
    low, high = 0.0 if times else min(ys), max(ys)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    bottom = HEIGHT - MARGIN
    right, up = _scale(left, max(xs), LEFT, WIDTH - RIGHT), _scale(low, high, bottom - 6, TOP + 8)
    chart = Chart(HEIGHT)
    places = time_ticks(max(xs)) if times else ticks(left, max(xs))
    marks = {right(x): time_label(x) if times else number(x) for x in places}
    chart.x_axis(marks, SINCE if times else across, TOP)
    chart.texts.append((0, 14, "start", title))
    for y in ticks(low, high, 5):
        chart.lines.append((LEFT, up(y), WIDTH - RIGHT, up(y), "axis"))
        chart.texts.append((LEFT - 8, up(y) + 4, "end", label(y)))
    for top, kind, marked in ((TOP, "begin", begins), (bottom - 12, "save", saves)):
        chart.lines += [(right(x), top, right(x), bottom, kind) for x in marked if left <= x <= max(xs)]
    drawn = [[(right(x), up(y)) for x, y in line] for line in lines]
    classes = kinds or [""] * len(drawn)
    chart.curves += [(kind, line) for kind, line in zip(classes, drawn, strict=True) if len(line) > 1]
    chart.dots += [line[0] for line in drawn if len(line) == 1]
    return chart


COLUMNS, LEVELS = 96, 8
"""How many columns and levels a heat map has at most."""


def heat(rows: Mapping[str, Curve], span: float, *, low: float = 0.0, high: float, unit: str) -> Chart | None:
    """Rows over `span` seconds, stronger where their mean is larger, from `low` to `high`. None without samples."""
    most = max(map(len, rows.values()), default=0)
    if not most or span <= 0:
        return None
    columns, tall = max(1, min(COLUMNS, most * 2 // 3)), 18.0 if len(rows) <= 32 else 12.0
    names = max(LEFT, *(12 + 7.6 * len(cut(name, 32)) for name in rows))
    chart, wide = Chart(TOP + tall * len(rows) + MARGIN), (WIDTH - RIGHT - names) / columns
    place, scale = _scale(0, span, names, WIDTH - RIGHT), _scale(low, high, 0, LEVELS)
    chart.x_axis({place(at): time_label(at) for at in time_ticks(span, 6)}, SINCE, TOP)
    cells: list[list[str]] = [[] for _ in range(LEVELS)]
    for row, (name, curve) in enumerate(rows.items()):
        top = TOP + row * tall
        if row % 2 == 0 or len(rows) <= 32:
            chart.texts.append((names - 8, top + tall - 4, "end", cut(name, 32)))
        parts: dict[int, list[float]] = {}
        for at, value in curve:
            parts.setdefault(min(columns - 1, max(0, int(at / span * columns))), []).append(value)
        for column, values in parts.items():
            level = min(LEVELS - 1, max(0, int(scale(fmean(values)))))
            cells[level].append(f"M{names + column * wide:.1f} {top:.0f}h{wide:.1f}v{tall - 1:.0f}h-{wide:.1f}z")
    chart.cells = [(f"h{level}", "".join(paths)) for level, paths in enumerate(cells) if paths]
    edges = [number(low + (high - low) * level / LEVELS) for level in range(LEVELS + 1)]
    for level, (least, most_of_it) in enumerate(pairwise(edges)):
        chart.boxes.append((names + 60 + 24 * level, 4, 24, 12, f"h{level}", f"{least} to {most_of_it} {unit}"))
    chart.texts += [(names + 52, 14, "end", edges[0]), (names + 68 + 24 * LEVELS, 14, "start", f"{edges[-1]} {unit}")]
    return chart


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    span = high - low
    return lambda value: first + (last - first) * ((value - low) / span if span > 0 else 0.0)
