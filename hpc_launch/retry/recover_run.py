"""Continue a run after an attempt has ended: the diagnosis, the verdict on record, and the next attempt, exactly once.

Any number of drivers may run this: the job's own end hook, the successor, `--wait`, `watch`, a sentinel job, the next
command. The verdict of the first driver counts (verdict.json). The first driver to claim the next number submits.
"""

from __future__ import annotations

import os
from contextlib import suppress

from msgspec import structs

from hpc_launch.base.errors import NotHere, NotNow, SchedulerError, UserError
from hpc_launch.diagnose.diagnosis import Diagnosis
from hpc_launch.retry.context import (
    RetryContext,
    left_alone,
    never_starts,
    read_context,
    silence_of_forgotten,
    vanished,
)
from hpc_launch.retry.drivers import NOTHING, DriverOutcome
from hpc_launch.retry.notifications import note_stop, postpone
from hpc_launch.retry.same_job import (
    continue_here,
    leave_to_successor,
    may_decide,
    take_over,
    withdraw_successor,
)
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import POSTPONED_S, RETRY_S
from hpc_launch.runs.records.plan_record import size_change
from hpc_launch.runs.records.run_info import Journal, why_not_own
from hpc_launch.runs.records.submission import VANISHED, abandon, never_submitted
from hpc_launch.runs.records.verdict_record import VerdictRecord, keep_verdict
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.tracker import RunTracker, script_ended
from hpc_launch.runs.submitting.cancel_run import carry_out
from hpc_launch.runs.submitting.run_store import checkpoint
from hpc_launch.schedulers.local.local_jobs import host_with
from hpc_launch.schedulers.scheduler import Scheduler

PATIENCE_S = 60.0
"""How long after its end record to wait for a job's final state before a verdict that stops the run."""

STEPS = ("diagnosed", "verdict")
"""The steps before those of run.submit, by their names in runs/submitting/run_store.py."""


def recover(
    run: RunFolder,
    tracker: RunTracker,
    scheduler: Scheduler,
    *,
    index: Index | None = None,
    inside: bool = False,
    here: bool = False,
    successor: bool = False,
) -> DriverOutcome:
    """Do what is due for a run, by the tracker's last look at it. Never raises a UserError.

    `index`: where the next attempt is listed. `inside`: this is the job's own end hook, which knows less than later
    drivers. It stops no run, and leaves an end by a signal to them unless Slurm says why. `here`: the job's script can
    start the next attempt itself. `successor`: this process runs in the run's successor, whose script can.
    """
    if host_with(run.path) is not None:
        return NOTHING  # its drivers are there
    cancelled = None if inside else _cancel(run, tracker, scheduler)
    if cancelled is not None:
        return cancelled
    context = read_context(run, tracker, scheduler)
    if context is None:
        return left_alone(run)
    if not inside and context.status.final and not context.status.undecided:
        withdraw_successor(context)
    if context.status.state == "COMPLETED" and not context.status.undecided:
        return NOTHING
    if context.status.state == "STUCK":
        return _withdraw(context)
    if not inside and vanished(context):
        return _give_up(context)
    stored = context.view.files.verdict
    if not inside and (stored is None or stored.again) and may_decide(context):
        return DriverOutcome("waiting", f"job {context.view.job_id} decides whether it continues by itself")
    verdict, problem = (stored, None) if stored is not None else _decide(context, inside=inside)
    if verdict is None:
        return _undecided(context)
    if verdict.again:
        new = stored is None
        outcome = _follow(context, verdict, index, new=new, inside=inside, here=here, successor=successor)
    else:
        withdraw_successor(context)
        outcome = DriverOutcome("ended", verdict.reason)
    return outcome if problem is None else structs.replace(outcome, words=f"{outcome.words}; {problem}")


def _cancel(run: RunFolder, tracker: RunTracker, scheduler: Scheduler) -> DriverOutcome | None:
    """Cancel a job that is to be cancelled. None where there is none."""
    status = tracker.last.get(run.name)
    if status is None or not status.cancel_due or why_not_own(run) is not None:
        return None
    try:
        job_ids = carry_out(run, tracker.views(run), scheduler)
    except SchedulerError as error:
        return DriverOutcome("waiting", str(error))
    return DriverOutcome("waiting", f"cancelled job {', '.join(job_ids)}: {status.reason or 'as asked'}")


def _give_up(context: RetryContext) -> DriverOutcome:
    """Claim an attempt whose job vanished before it began, so that it can never train if it comes back."""
    reason = f"the scheduler no longer knows job {context.view.job_id}, which never began"
    with suppress(OSError):
        abandon(context.attempt, f"{VANISHED}: {reason}")
    return DriverOutcome("waiting", reason)


def _undecided(context: RetryContext) -> DriverOutcome:
    """What a run without a verdict waits for."""
    if context.status.undecided:
        return DriverOutcome("waiting", "the scheduler has not reported the final state yet")
    silent = silence_of_forgotten(context)
    left = context.plan.retry.lost_after - silent if silent is not None else 0.0
    if left <= 0:
        return NOTHING
    job_id = context.view.job_id
    return DriverOutcome("waiting", f"the scheduler does not know job {job_id}; it counts as lost in {left:.0f} s")


def _decide(context: RetryContext, *, inside: bool) -> tuple[VerdictRecord | None, str | None]:
    """The verdict on an attempt that is over, put on record; None where it is too early for one.

    With why the team does not get the report on bad nodes.
    """
    from hpc_launch.retry.decision import diagnose_now, make_verdict, report_bad_nodes

    if never_submitted(context.view.files.void) and not context.follows_verdict:
        return None, None  # a person's submission, which that person repeats
    diagnosis = diagnose_now(context, inside=inside)
    if diagnosis is None:
        return None, None
    with suppress(OSError):
        context.attempt.environment.unlink()  # a script that was killed could not
    checkpoint("diagnosed")
    verdict, problem = make_verdict(context, diagnosis), None
    if not verdict.again and not _may_stop(context, diagnosis, inside=inside):
        if inside:
            note_stop(context, verdict)
        return None, None
    try:
        stored, ours = keep_verdict(context.attempt, verdict)
    except OSError:
        return (None if verdict.again else verdict), None  # the disk is full: stop all the same, unrecorded
    if ours:
        fields = {"attempt": context.attempt.number, "failure_class": stored.failure_class, "reason": stored.reason}
        Journal(context.run).note("verdict", verdict=stored.action, **fields)
        problem = report_bad_nodes(context, diagnosis)
    checkpoint("verdict")
    return stored, problem


def _may_stop(context: RetryContext, diagnosis: Diagnosis, *, inside: bool) -> bool:
    """Whether a verdict that stops the run may be made now. Slurm's final state may show a cause that logs do not."""
    view = context.view
    if inside:
        return False
    if diagnosis.confidence == "high" or view.final_record is not None or view.files.void is not None:
        return True
    return view.record is None or (view.ended is not None and view.now - view.ended > PATIENCE_S)


def _follow(
    context: RetryContext,
    verdict: VerdictRecord,
    index: Index | None,
    *,
    new: bool,
    inside: bool,
    here: bool,
    successor: bool,
) -> DriverOutcome:
    """Begin the attempt that the verdict asks for, unless another driver did, or it is too early."""
    from hpc_launch.retry.decision import following_attempt, hosts_back
    from hpc_launch.runs.submitting.submit_attempt import submit_next

    run, view, scheduler = context.run, context.view, context.scheduler
    number = context.attempt.number
    if os.path.isdir(run.attempt(number + 1).path):
        return DriverOutcome("waiting", "the next attempt is being submitted")
    postponed = view.files.postponed
    if postponed is not None and 0 <= view.now - postponed.tried < RETRY_S:
        return DriverOutcome("waiting", postponed.words)
    if "begin" not in scheduler.takes and verdict.not_before > view.now:
        return DriverOutcome("waiting", f"the next attempt follows in {verdict.not_before - view.now:.0f} s")
    if verdict.withdrawn and view.live is not None:
        with suppress(SchedulerError):
            scheduler.cancel(view.live.job_id)
        return DriverOutcome("waiting", f"job {view.live.job_id} is being cancelled")
    continued = None
    if here:
        continued = continue_here(context, verdict)
    if successor:
        continued = take_over(context, verdict)
    elif continued is None:
        continued = leave_to_successor(context, verdict, new=new)
    if continued is not None:
        return continued
    # The old job must end before the new one starts. A dependency makes Slurm wait for that, without polling.
    ending = ("dependency" in scheduler.takes or inside) and view.final_record is None and script_ended(view)
    after = view.job_id if "dependency" in scheduler.takes and (ending or inside) else None
    try:
        back = tuple(hosts_back(context, verdict))
        wanted = structs.replace(verdict, readmit=(*verdict.readmit, *back))
        prepared = following_attempt(run, wanted, view.now, after=after)
        occupied = scheduler.must_wait(prepared.script, run.path)
        if occupied is not None:
            return DriverOutcome("waiting", f"the next attempt waits for its hosts: {occupied}")
        patient = postponed is None or view.now - postponed.since < POSTPONED_S
        _, attempt, job_id = submit_next(
            run, prepared, scheduler, index=index, ending=ending, number=number, patient=patient
        )
    except NotNow as error:
        if inside and isinstance(error, NotHere):  # a command on another host can, and need not wait
            return DriverOutcome("waiting", str(error))
        return DriverOutcome("waiting", postpone(context, str(error)).words)
    except UserError as error:
        return DriverOutcome("waiting", f"the next attempt is due: {error}")
    notes = [verdict.reason, *(f"{name} is used again" for name in back), *filter(None, [size_change(attempt)])]
    return DriverOutcome("submitted", f"attempt {attempt.number} is job {job_id}: {'; '.join(notes)}")


def _withdraw(context: RetryContext) -> DriverOutcome:
    """Cancel a pending job that can never start, after a while: it is a failure like any other."""
    from hpc_launch.retry.decision import diagnose_never_starts, make_verdict

    job, left_s = never_starts(context)
    job_id = context.view.job_id or ""
    if job is None:
        return NOTHING
    if left_s > 0:
        return DriverOutcome("waiting", f"job {job_id} can never start; it is cancelled in {left_s:.0f} s")
    diagnosis = diagnose_never_starts(context, job)
    if diagnosis is None:
        return NOTHING
    try:
        stored, ours = keep_verdict(context.attempt, make_verdict(context, diagnosis, withdrawn=True))
    except OSError:
        return NOTHING
    if ours:
        Journal(context.run).note("withdrawn", attempt=context.attempt.number, job_id=job_id, reason=stored.reason)
    with suppress(SchedulerError):
        context.scheduler.cancel(job_id)
    return DriverOutcome("waiting", f"job {job_id} can never start and is cancelled: {stored.reason}")
