"""SVG figures of `doctor --bench`: bandwidth over message size, and the heat map of node pairs. Pure.

Text and lines take the reader's colour scheme: dark on light, light on dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from hpc_launch.job.shell_text import visible
from hpc_launch.preflight.bench_report import bytes_text, rate
from hpc_launch.runs.records.bench_record import BenchRecord

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 50, 50
COLOURS = ("c0", "c1", "c2")
MOST_NODES = 128
"""Rows of the heat map; more cannot be told apart."""
_STYLE = """<style>
:root { color-scheme: light dark }
text { font: 12px sans-serif; fill: #1f2328 } .title { font-size: 15px } .axis { stroke: #8c959f; stroke-width: 1 }
.grid { stroke: #8c959f; stroke-opacity: .3 } .line { fill: none; stroke-width: 2 }
.none { fill: none; stroke: #8c959f; stroke-opacity: .4 } .cell { fill: #0969da } circle { fill: none }
.c0 { stroke: #0969da } .c1 { stroke: #bc4c00 } .c2 { stroke: #1a7f37 } .back { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .back { fill: #0d1117 } .c0 { stroke: #58a6ff } .c1 { stroke: #f0883e } .c2 { stroke: #3fb950 }
.cell { fill: #58a6ff }
}
</style>
"""


def curves(record: BenchRecord, title: str) -> str:
    """Bus bandwidth over message size, both logarithmic: one line for each collective."""
    lines = {name: [(s, r) for s, _, r in points if s > 0 and r > 0] for name, points in record.curves.items()}
    lines = {name: points for name, points in lines.items() if points}
    sizes = sorted({size for points in lines.values() for size, _ in points}) or [1]
    rates = [value for points in lines.values() for _, value in points] or [1.0]
    low, high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)) + 1e-9)
    high = max(high, low + 1)
    first, last = math.log2(sizes[0]), max(math.log2(sizes[-1]), math.log2(sizes[0]) + 1)

    def x(size: float) -> float:
        return LEFT + (math.log2(size) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [_text(LEFT, 24, title, "title")]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 6, at + 4, f"{10.0**power:g}", anchor="end"))
    for size in sizes:
        parts.append(_text(x(size), HEIGHT - BOTTOM + 18, bytes_text(size), anchor="middle", small=len(sizes) > 8))
    parts.append(f'<path class="axis" fill="none" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    parts.append(_text(8, TOP - 8, "GB/s"))
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 8, "message size", anchor="end"))
    for at, (name, points) in enumerate(sorted(lines.items())):
        colour = COLOURS[at % len(COLOURS)]
        path = "L".join(f"{x(size):.1f} {y(value):.1f}" for size, value in sorted(points))
        parts.append(f'<path class="line {colour}" d="M{path}"/>')
        for size, value in points:
            tip = f"<title>{_plain(f'{name}, {bytes_text(size)}: {rate(value)}')}</title>"
            parts.append(f'<circle class="{colour}" cx="{x(size):.1f}" cy="{y(value):.1f}" r="3">{tip}</circle>')
        place = LEFT + 150 * at
        parts.append(f'<path class="line {colour}" d="M{place} 38h20"/>')
        parts.append(_text(place + 26, 42, name))
    return _svg(WIDTH, HEIGHT, parts)


def heat_map(record: BenchRecord, title: str) -> str:
    """All-reduce bandwidth of each pair of nodes, paler where slower."""
    names = record.nodes[:MOST_NODES]
    pairs = {(a, b): value for a, b, value in record.valid_pairs() if b < len(names)}
    most = max(pairs.values(), default=1.0)
    cell = max(6, min(40, 640 // max(len(names), 1)))
    margin = 20 + 7 * max((len(visible(name)) for name in names), default=0)
    parts = [_text(20, 24, title, "title")]
    parts += _cells(names, pairs, most, cell, margin)
    width = max(margin + cell * len(names) + 20, 420, 9 * len(title) + 40)
    height = TOP + cell * len(names) + 50
    scale = f"full colour: {rate(most)}; paler: slower; outline: not measured; columns in the order of the rows"
    parts.append(_text(20, height - 18, scale))
    if len(record.nodes) > len(names):
        parts.append(_text(20, height - 2, f"the first {len(names)} of {len(record.nodes)} nodes"))
    return _svg(width, height, parts)


def _cells(
    names: tuple[str, ...], pairs: dict[tuple[int, int], float], most: float, cell: int, margin: int
) -> Iterator[str]:
    for row, name in enumerate(names):
        top = TOP + row * cell
        if cell >= 10 or row % 4 == 0:
            yield _text(margin - 6, top + cell / 2 + 4, name, anchor="end")
        for column, other in enumerate(names):
            value = pairs.get((min(row, column), max(row, column)))
            place = f'x="{margin + column * cell}" y="{top}" width="{cell - 1}" height="{cell - 1}"'
            if row == column:
                continue
            if value is None:
                yield f'<rect class="none" {place}/>'
                continue
            tip = _plain(f"{name} with {other}: {rate(value)}")
            yield f'<rect class="cell" {place} fill-opacity="{max(value / most, 0.05):.2f}"><title>{tip}</title></rect>'


def _plain(text: str) -> str:
    """Text for XML, which allows no control characters, not even escaped."""
    return escape(visible(text))


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start", *, small: bool = False) -> str:
    size = ' style="font-size: 10px"' if small else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"{size}>{_plain(text)}</text>'


def _svg(width: int, height: int, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    back = f'<rect class="back" width="{width}" height="{height}"/>'
    return "\n".join([head, _STYLE + back, *parts, "</svg>\n"])
