"""Whether the next attempt can run in the job of the one that has just ended: without a new wait in the queue.

Only the job's own end hook asks this. The job's script then starts the attempt (parts/continue_here.sh).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from hpc_launch.base.errors import UserError
from hpc_launch.base.files import read_text
from hpc_launch.job.hostlist import names_or_text
from hpc_launch.retry.context import RetryContext, ended_from_outside
from hpc_launch.retry.decision import following_attempt
from hpc_launch.retry.drivers import DriverOutcome
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.plan_record import plan_of
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.runs.submitting.run_store import PreparedAttempt
from hpc_launch.runs.submitting.successor_job import OwnJob, continue_job
from hpc_launch.schedulers.job_files import directives

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


ACTIONS = frozenset({"RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED"})

MARGIN_S = 120.0
"""A job with less time left until its warning would not get far."""

LONGEST_PAUSE_S = 30.0
"""A longer pause before the attempt is spent in the queue, not on nodes that stand idle."""

HOOK_S = 75.0
"""How long after its end record a job may still be deciding (timeouts in parts/job_slurm.sh)."""

END_TIME = "HPC_LAUNCH_END_TIME"
"""In the environment of the job's script: when Slurm ends the job, in seconds since the epoch."""


def may_decide(context: RetryContext) -> bool:
    """Whether the job's end hook may still be deciding: another driver that submitted now would take its nodes away."""
    view = context.view
    if not _wanted(context) or view.ended is None or view.live is None or view.live.state != "RUNNING":
        return False
    if not os.path.exists(context.run.after) or not 0 <= view.now - view.ended < HOOK_S:
        return False
    try:
        return context.attempt.hook_log.stat().st_size == 0  # what the hook decided is the last that it writes
    except OSError:
        return True


def continue_here(
    context: RetryContext, verdict: VerdictRecord, changed: PreparedAttempt | None
) -> DriverOutcome | None:
    """Prepare the attempt that a verdict asks for in this job; None where it needs a new one."""
    pause = pause_left(context, verdict)
    if not _fits(context, verdict, pause):
        return None
    try:
        prepared = following_attempt(context.run, verdict, verdict.not_before, after=None, changed=changed)
    except UserError:
        return None  # a new submission is refused for the same reason, and says so
    nodes = choose_nodes(context, verdict, prepared)
    if nodes is None or not same_request(context.attempt, prepared):
        return None
    time.sleep(pause)
    number, view, files = context.attempt.number + 1, context.view, context.view.files
    name = files.intent.job_name if files.intent is not None else None
    cluster = files.job.cluster if files.job is not None else None
    try:
        continue_job(context.run, prepared, OwnJob(files.job_id or "", name, cluster, files.restart), number, nodes)
    except UserError as error:
        return DriverOutcome("waiting", f"the next attempt is due: {error}")
    return DriverOutcome("submitted", f"attempt {number} continues in job {view.job_id}: {verdict.reason}")


def _wanted(context: RetryContext) -> bool:
    return context.slurm and context.plan.retry.in_allocation == "auto"


def _fits(context: RetryContext, verdict: VerdictRecord, pause: float) -> bool:
    """Whether the job itself can go on: it runs, has time left, and has lost no node."""
    view, plan = context.view, plan_of(context.attempt)
    if plan is None or not _wanted(context) or verdict.action not in ACTIONS or pause > LONGEST_PAUSE_S:
        return False
    if (
        view.live is None
        or view.live.state != "RUNNING"
        or ended_from_outside(context)
        or view.warned
        or view.end is None
    ):
        return False
    if (view.end.lost_nodes and not context.plan.elastic) or not view.files.nodes or view.files.void is not None:
        return False
    if verdict.sets and plan.requeue:
        return False  # a job that Slurm requeues runs the script that it was submitted with
    left = _end_time() - view.now
    return left > MARGIN_S + pause + (plan.signal_before_s or 0)


def pause_left(context: RetryContext, verdict: VerdictRecord) -> float:
    """What is left of the verdict's pause. The shortest is meant for the queue: nobody else waits for these nodes."""
    if verdict.not_before - verdict.time <= context.plan.retry.backoff.first:
        return 0.0
    return max(0.0, verdict.not_before - context.view.now)


def _end_time() -> float:
    try:
        return float(os.environ.get(END_TIME, ""))
    except ValueError:
        return 0.0


def same_request(attempt: AttemptFolder, prepared: PreparedAttempt) -> bool:
    """Whether another attempt asks Slurm for what this one did."""
    try:
        script = attempt.script.read_text("utf-8", errors="surrogateescape")
    except OSError:
        return False
    return directives(script) == directives(prepared.script)
