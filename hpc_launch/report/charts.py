"""Charts of a run as inline SVG: attempts on a time axis, shares, and curves over all attempts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from hpc_launch.performance.time_account import CATEGORIES, Interval, TimeAccount
from hpc_launch.report.html_text import element, escaped
from hpc_launch.view.format_values import duration, number, share

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
    """`0`, `30 s`, `1 m 30 s`, `15 m`, `2 h 30 m`, `3 d`: at most two units."""
    if not seconds:
        return "0"
    if seconds < 1:
        return f"{number(seconds)} s"
    left, words = round(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        words += [f"{left // size} {unit}"] if left >= size else []
        left %= size
    return " ".join(words[:2])


WIDTH, LEFT, RIGHT = 1000.0, 90.0, 16.0
ROW, MARGIN = 24.0, 30.0
HEIGHT = 220.0
FINEST = 2000
"""An interval shorter than this part of the axis is drawn as a part of the one before it."""

Curve = Sequence[tuple[float, float]]


def timeline(account: TimeAccount, labels: dict[int, str]) -> str:
    """The attempts as rows on a time axis, in the colours of the categories. `labels`: by number of the attempt."""
    numbers = list(dict.fromkeys(part.attempt for part in account.intervals))
    if not numbers:
        return ""
    begin, span = account.intervals[0].begin, account.wall_s
    place = _scale(0, span, LEFT, WIDTH - RIGHT)
    height = ROW * len(numbers) + MARGIN
    parts = [_vertical(place(at), height - MARGIN, time_label(at)) for at in time_ticks(span)]
    rows = {name: row for row, name in enumerate(numbers)}
    for name, row in rows.items():
        parts.append(_text(LEFT - 8, row * ROW + 16, labels.get(name, ""), "end"))
    for part in coarse(account.intervals, span / FINEST):
        low, high = place(part.begin - begin), place(part.end - begin)
        phase = f" ({part.phase.replace('_', ' ')})" if part.phase else ""
        title = f"{part.category}{phase}, {duration(part.seconds)}, {duration(part.begin - begin)} after the beginning"
        parts.append(_rectangle(low, rows[part.attempt] * ROW + 4, (high - low, ROW - 8), part.category, title))
    return _svg(height, "".join(parts), "The attempts of the run over time")


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


def shares(account: TimeAccount) -> str:
    """The categories as parts of one bar."""
    wall, left, parts = account.wall_s, 0.0, []
    for category in CATEGORIES:
        seconds = account.seconds(category)
        if seconds > 0 and wall > 0:
            width = WIDTH * seconds / wall
            title = f"{category}: {duration(seconds)}, {share(seconds / wall)}"
            parts.append(_rectangle(left, 0, (width, 26), category, title))
            left += width
    if not parts:
        return ""
    words = {"class_": "bar", "preserveAspectRatio": "none", "role": "img", "aria_label": "The share of each category"}
    return element("svg", "".join(parts), viewBox=f"0 0 {WIDTH:.0f} 26", **words)


FURTHEST = 1e300
"""Values beyond this are not drawn: their differences may be infinite."""


def curves(
    lines: Sequence[Curve], describe: str, *, label: Callable[[float], str], begins: Sequence[float] = (), times: bool
) -> str:
    """One line for each attempt.

    `times`: both axes begin at 0, and the x axis is a time; `begins`: where attempts begin on it.
    """
    lines = [[(x, y) for x, y in line if abs(y) < FURTHEST] for line in lines]
    points = [point for line in lines for point in line]
    if len({x for x, _ in points}) < 2:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left = 0.0 if times else min(xs)
    low, high = 0.0 if times else min(ys), max(ys)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    across, up = _scale(left, max(xs), LEFT, WIDTH - RIGHT), _scale(low, high, HEIGHT - MARGIN - 6, 8)
    marks = time_ticks(max(xs)) if times else ticks(left, max(xs))
    name = time_label if times else number
    parts = [_vertical(across(x), HEIGHT - MARGIN, name(x)) for x in marks]
    for y in ticks(low, high, 5):
        parts.append(_line(LEFT, up(y), WIDTH - RIGHT, up(y), "axis") + _text(LEFT - 8, up(y) + 4, label(y), "end"))
    parts += [_line(across(x), 0, across(x), HEIGHT - MARGIN, "begin") for x in begins if left <= x <= max(xs)]
    for line in lines:
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line)
        if len(line) > 1:
            parts.append(f'<polyline class="curve" points="{path}"/>')
        elif line:
            parts.append(f'<circle class="dot" cx="{across(line[0][0]):.1f}" cy="{up(line[0][1]):.1f}" r="3"/>')
    return _svg(HEIGHT, "".join(parts), describe)


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    span = high - low
    return lambda value: first + (last - first) * ((value - low) / span if span > 0 else 0.0)


def _svg(height: float, content: str, describe: str) -> str:
    """A chart; it scrolls in a narrow window, so that its text stays readable."""
    chart = element("svg", content, viewBox=f"0 0 {WIDTH:.0f} {height:.0f}", role="img", aria_label=describe)
    return element("div", chart, class_="wide")


def _rectangle(x: float, y: float, size: tuple[float, float], kind: str, title: str) -> str:
    words = {"x": f"{x:.2f}", "y": f"{y:.1f}", "width": f"{max(size[0], 0.4):.2f}", "height": f"{size[1]:.1f}"}
    return element("rect", element("title", escaped(title)), class_=kind, **words)


def _vertical(x: float, bottom: float, label: str) -> str:
    return _line(x, 0, x, bottom, "axis") + _text(x, bottom + 18, label, "middle")


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'
