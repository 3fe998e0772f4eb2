"""The next attempt in a job that is there already, without a new wait in the queue.

The end hook of a job asks whether the attempt can go on in that job, the successor whether it can take over: the run's
next job, which waits while one trains. The job's script then starts the attempt (parts/continue_here.sh). Other drivers
leave it to the successor, so that the run keeps the place in the queue that this job has earned.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from hpc_launch.base.errors import SchedulerError, UserError
from hpc_launch.base.files import read_text
from hpc_launch.job.hostlist import names_or_text
from hpc_launch.retry.context import RetryContext, ended_from_outside
from hpc_launch.retry.drivers import DriverOutcome
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.attempt_files import Reader, successor_of
from hpc_launch.runs.records.plan_record import plan_of
from hpc_launch.runs.records.submission import SuccessorRecord
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.runs.status.run_status import successor_text
from hpc_launch.runs.submitting.run_store import PreparedAttempt
from hpc_launch.runs.submitting.successor_job import OwnJob, cancel_successor, continue_job, send_successor
from hpc_launch.schedulers.job_files import directives
from hpc_launch.schedulers.slurm.slurm_reasons import failed_to_start

HELD = "SLURM_JOB_NODELIST"
"""In the environment of the job's script: all nodes of the job, with its spares."""

ACTIONS = frozenset({"RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED"})

MARGIN_S = 120.0
"""A job with less time left until its warning would not get far."""

LONGEST_PAUSE_S = 30.0
"""A longer pause before the attempt is spent in the queue, not on nodes that stand idle."""

HOOK_S = 75.0
"""How long after its end record a job may still be deciding (timeouts in parts/run_hook.sh)."""

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


def continue_here(context: RetryContext, verdict: VerdictRecord) -> DriverOutcome | None:
    """Prepare the attempt that a verdict asks for in this job; None where it needs a new one."""
    pause = _pause_left(context, verdict)
    if not _fits(context, verdict, pause):
        return None
    prepared, files = _following(context, verdict, asked=context.attempt), context.view.files
    # A new job may have to use the blamed nodes: only so many are excluded.
    lost = (*_lost(context), *(verdict.blamed if verdict.action == "RETRY_ELSEWHERE" else ()))
    nodes = _nodes(context, prepared, files.nodes, lost) if prepared is not None else None
    if prepared is None or nodes is None:
        return None
    name = files.intent.job_name if files.intent is not None else None
    cluster = files.job.cluster if files.job is not None else None
    own = OwnJob(files.job_id or "", name, cluster, files.restart)
    return _continue(context, verdict, prepared, own, nodes, pause)[1]


def take_over(context: RetryContext, verdict: VerdictRecord) -> DriverOutcome | None:
    """Prepare the attempt that a verdict asks for in this job, the successor; None where it needs another one."""
    job_id, pause, found = os.environ.get("SLURM_JOB_ID", ""), _pause_left(context, verdict), _recorded(context)
    # An attempt of a job that Slurm requeued before would count as one of its earlier start.
    if found is None or pause > LONGEST_PAUSE_S or os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        return None
    prepared = _following(context, verdict, asked=found[0])
    nodes = _nodes(context, prepared) if prepared is not None else None
    if prepared is None or nodes is None:
        return None
    name, cluster = os.environ.get("SLURM_JOB_NAME"), context.scheduler.cluster()
    own = OwnJob(job_id, name, cluster, submitted=found[1].time, how="taken over")
    attempt, outcome = _continue(context, verdict, prepared, own, nodes, pause)
    if attempt is not None:
        send_successor(attempt, prepared, context.scheduler, job_id)
    return outcome


def leave_to_successor(context: RetryContext, verdict: VerdictRecord, *, new: bool) -> DriverOutcome | None:
    """Leave the attempt that a verdict asks for to the successor; None where it cannot run there.

    `new`: the verdict was made just now, so that the nodes it names are to be excluded.
    """
    job, found = context.status.successor, _recorded(context)
    if job is None or found is None or failed_to_start(job.reason) or _pause_left(context, verdict) > LONGEST_PAUSE_S:
        return None
    if verdict.sets and _following(context, verdict, asked=found[0]) is None:
        return None
    if new and (verdict.exclude or verdict.readmit) and job.state == "PENDING":
        wanted = dict.fromkeys([*context.plan.exclude, *context.excluded, *verdict.exclude])
        with suppress(SchedulerError):  # it looks at its nodes when it starts
            context.scheduler.exclude(job.job_id, [node for node in wanted if node not in verdict.readmit])
    return DriverOutcome("waiting", f"{successor_text(job)}: {verdict.reason}")


def withdraw_successor(context: RetryContext) -> None:
    """Cancel the successor of a run that is over. It would end by itself when it starts."""
    if context.status.successor is not None:
        cancel_successor(context.run, context.scheduler)


def _nodes(
    context: RetryContext, prepared: PreparedAttempt, used: Sequence[str] = (), lost: Iterable[str] = ()
) -> tuple[str, ...] | None:
    """The nodes of this job for the attempt, in the job's order: those `used` before, and others for the `lost` ones.

    An elastic run goes on with fewer nodes. None where too few are left, or not the first one, which runs the script.
    """
    held, plan, overrides = names_or_text(os.environ.get(HELD)) or used, plan_of(context.attempt), prepared.overrides
    most = len(used or held)
    if plan is not None and (context.plan.elastic or (plan.spares and not used)):
        most = plan.nodes or most
    fewest = context.plan.least_nodes if context.plan.elastic else most
    avoided = {name for text in (*overrides.exclude, *overrides.ledger) for name in names_or_text(text)}
    avoided.update(lost, (node for node, state in context.scheduler.nodes(held).items() if state))
    healthy = [node for node in held if node not in avoided]
    if not healthy or len(healthy) < fewest or healthy[0] != held[0]:
        return None
    chosen = sorted(healthy, key=lambda node: node not in used)[:most]
    return tuple(node for node in held if node in chosen)


def _lost(context: RetryContext) -> Iterator[str]:
    """The nodes that fell silent in this job. Slurm may not know it yet, and they may come back."""
    for attempt in context.run.attempts():
        if Reader().read(attempt).same_start(context.view.files):
            with suppress(OSError):
                yield from read_text(attempt.lost, errors="replace").split()


def _recorded(context: RetryContext) -> tuple[AttemptFolder, SuccessorRecord] | None:
    """The successor of the run's newest job, and the attempt whose request it repeats."""
    reader = Reader()
    found = successor_of([reader.read(attempt) for attempt in context.run.attempts()])
    return (found[0].attempt, found[1]) if found is not None else None


def _following(context: RetryContext, verdict: VerdictRecord, *, asked: AttemptFolder) -> PreparedAttempt | None:
    """The attempt that a verdict asks for; None where it asks Slurm for something else than the attempt `asked`."""
    from hpc_launch.retry.decision import following_attempt

    try:
        prepared = following_attempt(context.run, verdict, verdict.not_before)
        script = asked.script.read_text("utf-8", errors="surrogateescape")
    except (UserError, OSError):
        return None  # a new submission is refused for the same reason, and says so
    return prepared if directives(script) == directives(prepared.script) else None


def _continue(  # noqa: PLR0917 - what was found out
    context: RetryContext,
    verdict: VerdictRecord,
    prepared: PreparedAttempt,
    own: OwnJob,
    nodes: Sequence[str],
    pause: float,
) -> tuple[AttemptFolder | None, DriverOutcome]:
    """After the pause, begin the attempt in this job, unless another driver was first."""
    time.sleep(pause)
    number = context.attempt.number + 1
    try:
        attempt = continue_job(context.run, prepared, own, number, nodes)
    except UserError as error:
        return None, DriverOutcome("waiting", f"the next attempt is due: {error}")
    return attempt, DriverOutcome("submitted", f"attempt {number} continues in job {own.job_id}: {verdict.reason}")


def _wanted(context: RetryContext) -> bool:
    return context.slurm and context.plan.retry.in_allocation == "auto"


def _fits(context: RetryContext, verdict: VerdictRecord, pause: float) -> bool:
    """Whether the job itself can go on: it runs, has time left, and has lost no node."""
    view, plan = context.view, plan_of(context.attempt)
    if plan is None or not _wanted(context) or verdict.action not in ACTIONS or pause > LONGEST_PAUSE_S:
        return False
    runs = view.live is not None and view.live.state == "RUNNING" and not ended_from_outside(context)
    if not runs or view.warned or view.end is None:
        return False
    if (view.end.lost_nodes and not context.plan.elastic) or not view.files.nodes or view.files.void is not None:
        return False
    if verdict.sets and plan.requeue:
        return False  # a job that Slurm requeues runs the script that it was submitted with
    left = float(os.environ.get(END_TIME) or 0.0) - view.now
    return left > MARGIN_S + pause + (plan.signal_before_s or 0)


def _pause_left(context: RetryContext, verdict: VerdictRecord) -> float:
    """What is left of the verdict's pause. The shortest is meant for the queue: nobody else waits for these nodes."""
    if verdict.not_before - verdict.time <= context.plan.retry.backoff.first:
        return 0.0
    return max(0.0, verdict.not_before - context.view.now)
