"""`doctor --bench`: a short job of the same size measures collectives, and what it measured is kept and compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import to_builtins

from hpc_launch.base.agent_archive import AGENT
from hpc_launch.base.files import write_atomic
from hpc_launch.preflight import bench_figures, bench_report
from hpc_launch.preflight.level import Level
from hpc_launch.preflight.short_run import Context, ended, follow_short_run, prepare_short, short_sets
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.runs.evidence.collect_evidence import diagnose_attempt
from hpc_launch.runs.records.bench_record import BenchRecord, previous_bench, read_bench, store_bench

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
    lines = [f"bus bandwidth, {record.tool}, {record.backend}:", *bench_report.table(record)]
    lines += [f"not measured: {what}: {reason}" for what, reason in sorted(record.not_measured.items())]
    return [*lines, *bench_report.slow_parts(record), *bench_report.changes(record, before)]


def _keep(record: BenchRecord, site: str, run: str) -> list[str]:
    """Store the record and draw it; returns where. Raises OSError."""
    now = time.time()
    path = store_bench(record, site, run, now)
    title = f"{site}: {len(record.nodes)} nodes x {record.per_node}, {record.backend}, {time.strftime('%Y-%m-%d')}"
    curve, pairs = path.with_name(f"{run}-curve.svg"), path.with_name(f"{run}-pairs.svg")
    write_atomic(curve, bench_figures.curves(record, f"Bus bandwidth, {title}"))
    lines = [f"curve: {curve}"]
    if record.pairs:
        size = bench_report.bytes_text(record.pair_bytes)
        write_atomic(pairs, bench_figures.heat_map(record, f"All-reduce of {size} between two nodes, {title}"))
        lines.append(f"node pairs: {pairs}")
    return lines
