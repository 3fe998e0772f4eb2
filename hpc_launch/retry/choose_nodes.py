"""Choose the nodes of an attempt that continues in the job of the one before it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from hpc_launch.base.files import read_text
from hpc_launch.job.hostlist import names_or_text
from hpc_launch.retry.context import RetryContext
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.plan_record import plan_of
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.runs.submitting.run_store import PreparedAttempt

HELD = "SLURM_JOB_NODELIST"
"""In the environment of the job's script: all nodes of the job, with its spares."""


def choose_nodes(context: RetryContext, verdict: VerdictRecord, prepared: PreparedAttempt) -> tuple[str, ...] | None:
    """The nodes for the attempt, in the job's order: those of the last one, and spares for those that failed.

    A spare of the same leaf switch or block comes first. An elastic run goes on with fewer nodes. None where too few
    are left, or not the first one, which runs the job's script.
    """
    used, plan = context.view.files.nodes, plan_of(context.attempt)
    fewest = most = len(used)
    if context.plan.elastic:
        fewest, most = context.plan.least_nodes, (plan.nodes if plan is not None else None) or most
    held = names_or_text(os.environ.get(HELD)) or used
    lost = set(_lost(context))
    if verdict.action == "RETRY_ELSEWHERE":
        lost.update(verdict.blamed)  # a new job may have to use them: only so many are excluded
    healthy = [node for node in usable(context, prepared, held) if node not in lost]
    if len(healthy) < fewest or healthy[0] != held[0]:
        return None
    chosen = [node for node in healthy if node in used][:most]
    spares = [node for node in healthy if node not in used]
    if len(spares) > 1 and len(chosen) < most:
        spares = _nearest_first(spares, [node for node in used if node not in healthy], chosen, context)
    chosen += spares[: most - len(chosen)]
    return tuple(node for node in held if node in chosen)


def usable(context: RetryContext, prepared: PreparedAttempt, held: Sequence[str]) -> list[str]:
    """Those of a job's nodes that the attempt may use."""
    overrides = prepared.overrides
    avoided = {name for text in (*overrides.exclude, *overrides.ledger) for name in names_or_text(text)}
    avoided.update(context.scheduler.down(held))
    return [node for node in held if node not in avoided]


def _lost(context: RetryContext) -> Iterator[str]:
    """The nodes that fell silent in this job. Slurm may not know it yet, and they may come back."""
    for attempt in context.run.attempts():
        if Reader().read(attempt).same_start(context.view.files):
            with suppress(OSError):
                yield from read_text(attempt.lost, errors="replace").split()


def _nearest_first(spares: list[str], failed: list[str], chosen: list[str], context: RetryContext) -> list[str]:
    """For each failed node the best spare: of its leaf switch or block, else of one that the run already uses."""
    switch = context.scheduler.switches([*spares, *failed, *chosen])
    in_use, left, ordered = {switch.get(node) for node in chosen}, list(spares), []
    for node in failed[: len(spares)]:
        best = min(left, key=lambda spare: (switch.get(spare) != switch.get(node), switch.get(spare) not in in_use))
        left.remove(best)
        ordered.append(best)
        in_use.add(switch.get(best))
    return [*ordered, *left]
