"""`doctor --bench`: measure the network by a short job, and compare the results."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from msgspec import to_builtins

from hpc_launch.base.installed import AGENT
from hpc_launch.base.json_records import read_record
from hpc_launch.job.job_file import JobSource
from hpc_launch.job.units import counted
from hpc_launch.preflight.short_run import Context, Level, follow_short_run, prepare_short, short_sets, state_of
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.runs.collect_evidence import diagnose_attempt
from hpc_launch.runs.records.node_records import BenchRecord, previous_bench, store_bench

CHANGE = 0.10
"""Measurements of a shared network differ by a few percent from run to run."""
LARGE = 1_000_000
"""Bytes. Smaller messages measure the latency, which varies more."""


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
        shape = f"x {counted(record.per_node, 'process', 'processes')}"
        shape = f"with {' + '.join(map(str, record.slots))} processes" if record.slots else shape
        nodes = counted(len(record.nodes), "node")
        yield f"first measurement of {nodes} {shape} with {record.backend} on this site"
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


def _by_size(record: BenchRecord, name: str) -> dict[int, float]:
    return {size: value for size, _, value in record.curves.get(name, ()) if size > 0 and value > 0}


def _as_json(record: BenchRecord) -> dict[str, object]:
    found: dict[str, object] = to_builtins(record)
    return {key: value for key, value in found.items() if key != "slots"}  # the lines say it


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


MODULES = {"hpc_launch_bench.py": AGENT / "bench.py"}
LIMIT = "00:15:00"
SECONDS = 600
"""After so long the program measures nothing more."""


def bench_level(
    job: JobSource, whole: PreparedJob, context: Context, *, site: str | None, sets: Sequence[str]
) -> Level:
    """Run the job, keep the result with the site, and compare it with the last one of the same shape."""
    plan = whole.plan
    per_node = ",".join(map(str, plan.slots or (plan.processes_per_node,)))
    arguments = f"[--per-node, '{per_node}', --seconds, {SECONDS}]"
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
    record = read_record(run.attempt(1).bench, BenchRecord)
    lines: list[str] = []
    if status.state != "COMPLETED":
        lines += [f"the job ended {state_of(status)}", diagnose_attempt(run.attempt(1)).advice]
    if record is None:
        return Level("bench", "failed", (*lines, "the job measured nothing"), run.name)
    before = previous_bench(record, plan.site)
    lines += [f"bus bandwidth, {record.tool}, {record.backend}:", *table(record)]
    lines += [f"not measured: {what}: {reason}" for what, reason in sorted(record.not_measured.items())]
    lines += changes(record, before)
    try:
        lines.append(f"kept in {store_bench(record, plan.site, run.name, time.time())}")
    except OSError as error:
        lines.append(f"cannot keep the result: {error}")
    state = "ok" if status.state == "COMPLETED" and record.curves else "failed"
    values = {"measured": _as_json(record), "before": None if before is None else _as_json(before)}
    return Level("bench", state, tuple(lines), run.name, values)  # type: ignore[arg-type]
