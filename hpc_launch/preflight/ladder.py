"""`doctor --ladder`: the training itself, on one GPU, one node, two nodes, then as asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpc_launch.preflight.short_run import Context, Level, ended, follow_short_run, prepare_short, short_sets
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.runs.evidence.collect_evidence import diagnose_attempt
from hpc_launch.runs.status.run_status import RunStatus

STEPS = 2
"""A training that has reported so many steps works: the first one may come from a checkpoint."""


def ladder(
    job: Path, whole: PreparedJob, context: Context, *, site: str | None, sets: Sequence[str]
) -> Iterator[Level]:
    """Run the levels in order; the first that fails is the last."""
    for name, changes in _levels(whole):
        level = _run_level(name, job, whole, context, site=site, sets=[*sets, *changes])
        yield level
        if level.state == "failed":
            return


def _levels(whole: PreparedJob) -> Iterator[tuple[str, list[str]]]:
    """The sizes below the whole job's, and the `--set` options that give them."""
    plan = whole.plan
    if plan.processes_per_node > 1:
        gpus = ["gpus_per_node=1"] if plan.gpus_per_node else []
        yield ("one GPU" if gpus else "one process"), ["nodes=1", "processes_per_node=1", *gpus]
    if plan.nodes > 1:
        yield "one node", ["nodes=1"]
    if plan.nodes > 2:
        yield "two nodes", ["nodes=2"]
    yield "whole job", []


def _run_level(
    name: str, job: Path, whole: PreparedJob, context: Context, *, site: str | None, sets: Sequence[str]
) -> Level:
    spec = whole.loaded.resolved.job
    short = [f"{key}={json.dumps(value)}" for key, value in spec.drill.set.items()]
    mine = [*short, *sets, *short_sets(whole.plan, "ladder")]
    prepared = prepare_short(name, job, site=site, sets=mine)
    if isinstance(prepared, Level):
        return prepared
    seen: set[int] = set()

    def works(status: RunStatus) -> bool:
        if status.progress.step is not None:
            seen.add(status.progress.step)
        return len(seen) >= STEPS

    context.say(f"{name}:")
    run, status = follow_short_run(prepared, mine, context, works)
    if status.state == "COMPLETED" or works(status):
        last = max(seen, default=None)
        words = f"the training reached step {last}" if last is not None else "the training ended well"
        return Level(name, "ok", (words,), run.name)
    diagnosis = diagnose_attempt(run.attempt(1))
    lines = [ended(status), diagnosis.advice]
    return Level(name, "failed", tuple(line for line in lines if line), run.name)
