"""Charts of a run as inline SVG: attempts on a time axis, shares, and curves over all attempts.

Text as HTML, and the style of the report. All text of a run is foreign: names, reasons, log lines, scripts.

The style is for light and dark, on screen and on paper. No fonts, images or scripts.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hpc_launch.performance.time_account import Interval, TimeAccount
from hpc_launch.view.format_values import clean, duration, log_lines, number


def escaped(value: object) -> str:
    """One line of text as HTML, with control characters and direction marks shown as escapes."""
    return html.escape(clean(value))


def escaped_lines(text: str, most: int) -> str:
    """Several lines as HTML, at most so many, without escape sequences."""
    lines = text.split("\n")
    shown = [html.escape(piece) for line in lines[:most] for piece in log_lines(line)]
    omitted = [f"… {len(lines) - most} more lines"] if len(lines) > most else []
    return "\n".join([*shown, *omitted])


def element(name: str, content: str, **attributes: object) -> str:
    """An element with content that is HTML already. Attributes are escaped; `class_` stands for `class`."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{words}>{content}</{name}>"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], classes: Mapping[int, str]) -> str:
    """A table. Headers are text, cells HTML. `classes` of columns: `n` aligns to the right, `long` may wrap."""

    def row(kind: str, cells: Sequence[str]) -> str:
        shown = (element(kind, cell, class_=classes.get(at)) for at, cell in enumerate(cells))
        return element("tr", "".join(shown))

    head, body = row("th", list(map(escaped, headers))), "".join(row("td", cells) for cells in rows)
    return element("div", element("table", element("thead", head) + element("tbody", body)), class_="wide")


def document(title: str, style: str, body: str) -> str:
    """A page that may load and run nothing: its only style is the one here, by its hash."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{escaped(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


LIGHT = {
    "queued": "#b9bec7", "starting": "#e3b341", "training": "#2f9e5b", "repeated": "#a5cf6a",
    "checkpointing": "#3b7dd8", "stalled": "#d1495b", "detecting": "#f08a4b",
    "restarting": "#8f5bc4", "ending": "#6f7b8a",
}  # fmt: skip
"""The colour of each category."""
DARK = {
    "queued": "#5b626e", "starting": "#d9a62e", "training": "#3fb56f", "repeated": "#7fa84a",
    "checkpointing": "#5b9bf0", "stalled": "#e0606f", "detecting": "#f39a62",
    "restarting": "#a97bdc", "ending": "#8b96a5",
}  # fmt: skip


def _colours(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


STYLE = (
    ":root{color-scheme:light dark;--back:#fff;--text:#1c2128;--dim:#5c6570;--line:#d5dae1;--soft:#f4f6f8;"
    + _colours(LIGHT)
    + "}@media (prefers-color-scheme:dark){:root{--back:#14181d;--text:#e4e8ed;--dim:#9aa4b0;--line:#343b45;"
    + "--soft:#1d232a;"
    + _colours(DARK)
    + """}}
*{box-sizing:border-box}
body{overflow-wrap:anywhere;margin:0 auto;max-width:70rem;padding:1.5rem 1rem 4rem;background:var(--back);
color:var(--text);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
h3{font-size:1rem;margin:1.4rem 0 .3rem}p{margin:.3rem 0}
.dim{color:var(--dim)}.state{font-weight:600}.bad{color:var(--stalled)}.good{color:var(--training)}
.facts{display:flex;flex-wrap:wrap;gap:.4rem 2.2rem;margin:.8rem 0}
.facts div{max-width:100%}.facts b{display:block;font-size:1.25rem;font-weight:600}
.wide{overflow-x:auto}.wide svg{min-width:52rem}
table{border-collapse:collapse;min-width:min(100%,36rem)}th,td{text-align:left;vertical-align:top;white-space:nowrap;
padding:.25rem 1.2rem .25rem 0;border-bottom:1px solid var(--line)}th{font-weight:600;color:var(--dim)}
.n{text-align:right;font-variant-numeric:tabular-nums}
.long{white-space:normal;min-width:14rem;overflow-wrap:anywhere}
pre{background:var(--soft);border:1px solid var(--line);padding:.6rem .8rem;overflow-x:auto;margin:.4rem 0;
font:12.5px/1.45 ui-monospace,monospace}
summary{cursor:pointer;font-weight:600;margin:.8rem 0 .3rem}
svg{display:block;width:100%;height:auto;margin:.5rem 0}
svg text{fill:var(--dim);font:13px system-ui,sans-serif}
.axis{stroke:var(--line);stroke-width:1}.curve{fill:none;stroke:var(--checkpointing);stroke-width:1.8}
.dot{fill:var(--checkpointing)}.begin{stroke:var(--restarting);stroke-dasharray:3 3}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.5em;border-radius:2px}
@media print{body{max-width:none}details{display:block}}
"""
    + "".join(f".{name}{{fill:var(--{name});background:var(--{name})}}" for name in LIGHT)
)


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
