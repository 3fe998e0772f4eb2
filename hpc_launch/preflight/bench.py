"""`doctor --bench`: measure the network by a short job, and draw and compare the results."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median

from msgspec import to_builtins

from hpc_launch.base.files import write_atomic
from hpc_launch.base.installed import AGENT
from hpc_launch.job.shell_text import visible
from hpc_launch.preflight.short_run import Context, Level, ended, follow_short_run, prepare_short, short_sets
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.runs.evidence.collect_evidence import diagnose_attempt
from hpc_launch.runs.records.node_records import BenchRecord, previous_bench, read_bench, store_bench

CHANGE = 0.10
"""Measurements of a shared network differ by a few percent from run to run."""
LARGE = 1_000_000
"""Bytes. Smaller messages measure the latency, which varies more."""
SLOW = 0.75
"""A node or pair below this share of the others' bandwidth is slow."""
MOST_PAIRS = 5


def table(record: BenchRecord) -> Iterator[str]:
    """Bus bandwidth by message size, one column for each collective."""
    names = [name for name, points in record.curves.items() if points]
    if not names:
        return
    rates = {name: _by_size(record, name) for name in names}
    yield f"{'bytes':>10}" + "".join(f"{name:>16}" for name in names)
    for size in sorted({size for name in names for size in rates[name]}):
        cells = (f"{rate(rates[name][size]):>16}" if size in rates[name] else f"{'-':>16}" for name in names)
        yield f"{bytes_text(size):>10}" + "".join(cells)


def rate(value: float) -> str:
    """`41.2 GB/s`; three significant digits, at most six after the point."""
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{min(max(digits, 0), 6)}f} GB/s"


def bytes_text(size: int) -> str:
    """`64 MiB`. A size that the number of processes does not divide is a little smaller than the one asked for."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        value = size / (1 << power)
        if value > 0.99:
            return f"{value:.0f} {unit}" if abs(value - round(value)) < 0.01 * value else f"{value:.1f} {unit}"
    return f"{size} B"


def changes(record: BenchRecord, before: BenchRecord | None) -> Iterator[str]:
    """For each collective, the large size whose bandwidth changed most."""
    if before is None:
        yield f"first measurement of {_shape(record)}"
        return
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(before.time or 0))
    same = []
    for name in record.curves:
        now, then = _by_size(record, name), _by_size(before, name)
        ratios = {size: now[size] / then[size] - 1 for size in now if then.get(size)}
        if not ratios:
            continue
        large = {size: ratio for size, ratio in ratios.items() if size > LARGE} or ratios
        size = max(large, key=lambda one: abs(ratios[one]))
        if abs(ratios[size]) < CHANGE:
            same.append(name)
            continue
        where = "below" if ratios[size] < 0 else "above"
        change = _percent(abs(ratios[size]))
        yield f"{name} at {bytes_text(size)}: {rate(now[size])}, {change} {where} the run of {date}"
    if same:
        yield f"{', '.join(same)}: within {_percent(CHANGE)} of the run of {date}"


def slow_parts(record: BenchRecord) -> Iterator[str]:
    """Nodes whose best pair is slow, then slow pairs of other nodes.

    The best pair counts: of three nodes with one slow one, two pairs of each other node are slow or include it.
    """
    pairs = record.valid_pairs()
    best: dict[int, float] = {}
    for a, b, value in pairs:
        best[a], best[b] = max(best.get(a, 0.0), value), max(best.get(b, 0.0), value)
    if len(best) < 3:
        return
    slow = {node: value for node, value in best.items() if value < SLOW * _others(best, node)}
    for node, value in sorted(slow.items(), key=lambda item: item[1]):
        share = _percent(1 - value / _others(best, node))
        yield f"{record.nodes[node]}: its fastest pair has {rate(value)}, {share} below those of the other nodes"
    weak = [
        (value, a, b)
        for a, b, value in pairs
        if a not in slow and b not in slow and value < SLOW * min(best[a], best[b])
    ]
    for value, a, b in sorted(weak)[:MOST_PAIRS]:
        yield f"{record.nodes[a]} with {record.nodes[b]}: {rate(value)}; each is faster with another node"


def _others(best: Mapping[int, float], node: int) -> float:
    return median(value for other, value in best.items() if other != node)


def _by_size(record: BenchRecord, name: str) -> dict[int, float]:
    return {size: value for size, _, value in record.curves.get(name, ()) if size > 0 and value > 0}


def _shape(record: BenchRecord) -> str:
    nodes, each, backend = record.shape
    processes = f"{each} process{'es' if each > 1 else ''}"
    return f"{nodes} node{'s' if nodes > 1 else ''} x {processes} with {backend} on this site"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


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


MODULES = {"hpc_launch_bench.py": AGENT / "bench.py"}
LIMIT = "00:15:00"
SECONDS = 600
"""After so long the program measures nothing more."""


def bench_level(job: Path, whole: PreparedJob, context: Context, *, site: str | None, sets: Sequence[str]) -> Level:
    """Run the job, keep the result with the site, draw it, and compare it with the last one of the same shape."""
    plan = whole.plan
    arguments = f"[--per-node, {plan.processes_per_node}, --seconds, {SECONDS}]"
    mine = [
        *sets,
        *short_sets(plan, "bench"),
        f"nodes={plan.nodes}",
        f"time={LIMIT}",
        "script=null",
        "command=null",
        "module=hpc_launch_bench",
        f"args={arguments}",
        "strategy=null",
        "parallel=null",
        "trackers=[]",
        "code=off",
        *(["launcher=torchrun"] if plan.launcher == "none" else []),
    ]
    short = prepare_short("bench", job, site=site, sets=mine)
    if isinstance(short, Level):
        return short
    run, status = follow_short_run(short, mine, context, lambda _: False, modules=MODULES)
    record = read_bench(run.attempt(1))
    lines: list[str] = []
    if status.state != "COMPLETED":
        lines += [f"the job ended {ended(status)}", diagnose_attempt(run.attempt(1)).advice]
    if record is None:
        return Level("bench", "failed", (*lines, "the job measured nothing"), run.name)
    before = previous_bench(record, plan.site)
    lines += bench_lines(record, before)
    try:
        lines += _keep(record, plan.site, run.name)
    except OSError as error:
        lines.append(f"cannot keep the result: {error}")
    state = "ok" if status.state == "COMPLETED" and record.curves else "failed"
    values = {"measured": to_builtins(record), "before": None if before is None else to_builtins(before)}
    return Level("bench", state, tuple(lines), run.name, values)  # type: ignore[arg-type]


def bench_lines(record: BenchRecord, before: BenchRecord | None) -> list[str]:
    """The report on a measurement."""
    lines = [f"bus bandwidth, {record.tool}, {record.backend}:", *table(record)]
    lines += [f"not measured: {what}: {reason}" for what, reason in sorted(record.not_measured.items())]
    return [*lines, *slow_parts(record), *changes(record, before)]


def _keep(record: BenchRecord, site: str, run: str) -> list[str]:
    """Store the record and draw it; returns where. Raises OSError."""
    now = time.time()
    path = store_bench(record, site, run, now)
    title = f"{site}: {len(record.nodes)} nodes x {record.per_node}, {record.backend}, {time.strftime('%Y-%m-%d')}"
    curve, pairs = path.with_name(f"{run}-curve.svg"), path.with_name(f"{run}-pairs.svg")
    write_atomic(curve, curves(record, f"Bus bandwidth, {title}"))
    lines = [f"curve: {curve}"]
    if record.pairs:
        size = bytes_text(record.pair_bytes)
        write_atomic(pairs, heat_map(record, f"All-reduce of {size} between two nodes, {title}"))
        lines.append(f"node pairs: {pairs}")
    return lines
