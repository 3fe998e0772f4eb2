"""The successor: the run's next job, which waits while one trains, and starts the next attempt when that one ends.

Other drivers leave the attempt to it, so that the run keeps the place in the queue that this job has earned.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from hpc_launch.base.errors import SchedulerError, UserError
from hpc_launch.job.hostlist import names_or_text
from hpc_launch.retry.context import RetryContext
from hpc_launch.retry.decision import following_attempt, next_attempt
from hpc_launch.retry.drivers import DriverOutcome
from hpc_launch.retry.same_job import HELD, LONGEST_PAUSE_S, pause_left, same_request, usable
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.attempt_files import Reader, successor_of
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.runs.records.submission import SuccessorRecord
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.runs.status.run_status import successor_text
from hpc_launch.runs.submitting.run_store import PreparedAttempt
from hpc_launch.runs.submitting.successor_job import OwnJob, cancel_successor, continue_job, send_successor
from hpc_launch.schedulers.slurm.pending_reasons import failed_to_start


def take_over(context: RetryContext, verdict: VerdictRecord, changed: PreparedAttempt | None) -> DriverOutcome | None:
    """Prepare the attempt that a verdict asks for in this job, the successor; None where it needs another one."""
    job_id, pause = os.environ.get("SLURM_JOB_ID", ""), pause_left(context, verdict)
    found = _recorded(context)
    # An attempt of a job that Slurm requeued before would count as one of its earlier start.
    if found is None or pause > LONGEST_PAUSE_S or os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        return None
    asked, record = found
    try:
        prepared = following_attempt(context.run, verdict, verdict.not_before, after=None, changed=changed)
    except UserError:
        return None  # a new submission is refused for the same reason, and says so
    nodes = _nodes(context, prepared)
    if nodes is None or not same_request(asked, prepared):
        return None
    time.sleep(pause)
    number, name = context.attempt.number + 1, os.environ.get("SLURM_JOB_NAME")
    own = OwnJob(job_id, name, context.scheduler.cluster(), submitted=record.time, how="taken over")
    try:
        attempt = continue_job(context.run, prepared, own, number, nodes)
    except UserError as error:
        return DriverOutcome("waiting", f"the next attempt is due: {error}")
    send_successor(attempt, prepared, context.scheduler, job_id)
    return DriverOutcome("submitted", f"attempt {number} continues in job {job_id}: {verdict.reason}")


def leave_to_successor(
    context: RetryContext, verdict: VerdictRecord, changed: PreparedAttempt | None, *, new: bool
) -> DriverOutcome | None:
    """Leave the attempt that a verdict asks for to the successor; None where it cannot run there.

    `new`: the verdict was made just now, so that the nodes it names are to be excluded.
    """
    job, found = context.status.successor, _recorded(context)
    if job is None or found is None or failed_to_start(job.reason) or pause_left(context, verdict) > LONGEST_PAUSE_S:
        return None
    if verdict.sets and not _fits(context, verdict, changed, found[0]):
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


def _recorded(context: RetryContext) -> tuple[AttemptFolder, SuccessorRecord] | None:
    """The successor of the run's newest job, and the attempt whose request it repeats."""
    reader = Reader()
    found = successor_of([reader.read(attempt) for attempt in context.run.attempts()])
    return (found[0].attempt, found[1]) if found is not None else None


def _fits(context: RetryContext, verdict: VerdictRecord, changed: PreparedAttempt | None, asked: AttemptFolder) -> bool:
    """Whether a changed attempt asks Slurm for what the successor did."""
    try:
        prepared = changed or next_attempt(context.run, sets=verdict.sets, exclude=verdict.exclude)[1]
    except UserError:
        return False
    return same_request(asked, prepared)


def _nodes(context: RetryContext, prepared: PreparedAttempt) -> list[str] | None:
    """The nodes of this job for the attempt; None where it must not use one that it would need."""
    held, plan = names_or_text(os.environ.get(HELD)), plan_of(context.attempt) or PlanRecord()
    healthy = usable(context, prepared, held) if held else []
    most = plan.nodes if plan.nodes and (plan.spares or context.plan.elastic) else len(held)
    fewest = context.plan.least_nodes if context.plan.elastic else most
    if not healthy or len(healthy) < fewest or healthy[0] != held[0]:  # the first one runs the script
        return None
    return healthy[:most]
