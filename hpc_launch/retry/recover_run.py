"""What follows the end of an attempt: the diagnosis, the verdict on record, and the next attempt, exactly once.

Any number of drivers may be at it: the job's own end hook, `--wait`, `watch`, a sentinel job, the next command. The
first one's verdict stands (verdict.json), the first one to claim the next number submits, all others find that done.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from hpc_launch.base.errors import SchedulerError, UserError
from hpc_launch.drive.attempts import following_attempt
from hpc_launch.recover.diagnosis import Diagnosis, Quote
from hpc_launch.retry.blame import named, note
from hpc_launch.retry.decision import RetryContext, make_decision, once_more
from hpc_launch.retry.driver_outcome import NOTHING, DriverOutcome
from hpc_launch.retry.ends import of_preemption, of_time_limit, of_void, of_warned
from hpc_launch.retry.lost import lost
from hpc_launch.retry.readmit import readmitting
from hpc_launch.retry.withdraw import withdraw
from hpc_launch.run.layout import AttemptFolder, RunFolder
from hpc_launch.run.records.claim import NEVER_SUBMITTED
from hpc_launch.run.records.journal import Journal
from hpc_launch.run.records.plan_record import newest_plan
from hpc_launch.run.records.run_info import read_info
from hpc_launch.run.records.scheduler_state import MAY_COME_BACK
from hpc_launch.run.records.verdict_record import VerdictRecord, keep_verdict
from hpc_launch.run.status.attempt_view import AttemptView
from hpc_launch.run.status.still_alive import script_ended
from hpc_launch.run.status.tracker import RunTracker
from hpc_launch.run.submitting.fault_points import checkpoint
from hpc_launch.run.submitting.submit_attempt import RunIndex, submit_next
from hpc_launch.schedulers.scheduler import JobRecord, Scheduler

PATIENCE_S = 60.0
"""How long after its end record a job's last word is waited for before a verdict that ends the run."""

STEPS = ("diagnosed", "verdict")
"""The names of the steps before those of run.submit, for run/submitting/fault_points.py."""

Diagnose = Callable[[RunFolder, AttemptFolder, JobRecord | None], Diagnosis]


def diagnosed(run: RunFolder, attempt: AttemptFolder, word: JobRecord | None) -> Diagnosis:
    """What ended an attempt, from all that the run folder and the scheduler have of it."""
    from hpc_launch.run.diagnosis.collect_evidence import diagnose_attempt

    return diagnose_attempt(run, attempt, word=word)


def recover(
    run: RunFolder,
    tracker: RunTracker,
    scheduler: Scheduler,
    *,
    index: RunIndex | None = None,
    inside: bool = False,
    diagnose: Diagnose = diagnosed,
) -> DriverOutcome:
    """Do what is due for a run, going by the tracker's last look at it. Never raises a UserError.

    `inside`: this is the job's own end hook, which knows less than others will. It ends no run, and an end by a signal
    it leaves to them unless Slurm says why.
    """
    found = _situation(run, tracker, scheduler)
    if found is None:
        return NOTHING
    if found.status.state == "STUCK":
        return _withdrawn(found)
    verdict = found.case.files.verdict
    if verdict is None:
        verdict = _decide(found, inside, diagnose)
    if verdict is None:
        return DriverOutcome("waiting", "the scheduler's last word is not there yet") if _due(found) else NOTHING
    if not verdict.again:
        return DriverOutcome("ended", verdict.reason)
    return _follow(found, verdict, index)


def _situation(run: RunFolder, tracker: RunTracker, scheduler: Scheduler) -> RetryContext | None:
    """The run's last attempt, where this user's drivers are to look after it."""
    cases, status, info = tracker.views(run), tracker.last.get(run.name), read_info(run)
    if not cases or status is None or info is None:
        return None
    try:
        if run.path.stat().st_uid != os.getuid():
            return None  # somebody else's, who has drivers of their own
    except OSError:
        return None
    recorded = newest_plan(run)
    # `hpc-launch run` lives in an allocation, and ends with it.
    if recorded is None or recorded.recovery is None or recorded.scheduler != info.scheduler:
        return None
    case = cases[-1]
    if case.superseded or case.requeued or _may_come_back(case, recorded.requeue):
        return None
    return RetryContext(run, case, status, recorded.recovery, scheduler, slurm=info.scheduler == "slurm")


def _may_come_back(case: AttemptView, requeue: bool) -> bool:
    """Whether Slurm itself may yet start the job again: nothing new is submitted while it can."""
    word = case.last_word
    return requeue and case.files.final is None and word is not None and word.state in MAY_COME_BACK


def _due(found: RetryContext) -> bool:
    """Whether the attempt is over, so that a verdict will come."""
    return found.status.undecided


def _decide(found: RetryContext, inside: bool, diagnose: Diagnose) -> VerdictRecord | None:
    """The verdict on an attempt that is over, put on record; None where it is too early for one."""
    case = found.case
    told = _told(found, inside, diagnose)
    if told is None:
        return None
    checkpoint("diagnosed")
    if case.files.void == NEVER_SUBMITTED:
        verdict = once_more(found)
    else:
        verdict = (readmitting(found, told) if case.files.void else None) or make_decision(found, told)
    if verdict is None or (not verdict.again and not _ripe(found, told, inside)):
        return None
    journal = Journal(found.run)
    try:
        kept, ours = keep_verdict(found.attempt, verdict)
    except OSError:
        return None if verdict.again else verdict  # a full disk: what ends the run ends it, unrecorded
    if ours:
        fields = {"attempt": found.attempt.number, "failure_class": kept.failure_class, "reason": kept.reason}
        journal.note("verdict", verdict=kept.action, **fields)
        note(found, told)
    checkpoint("verdict")
    return kept


def _told(found: RetryContext, inside: bool, diagnose: Diagnose) -> Diagnosis | None:
    """The diagnosis; None for an attempt that is not over, or of which nothing more has to be said."""
    case, status = found.case, found.status
    if case.files.void is not None:
        return of_void(case.files.void)
    forgotten = None if inside else lost(found)
    if forgotten is not None:
        return forgotten
    if inside and case.disturbed:
        return of_time_limit(case) or of_preemption(found)
    well = script_ended(case) and not case.disturbed and case.exit_code == 0
    warned = case.warned
    if not status.undecided and not (script_ended(case) and not case.disturbed and (warned or not well)):
        return None
    if case.files.cancel is not None:
        return Diagnosis(
            "cancelled_by_user", confidence="high", evidence=(Quote("cancel.json", 1, status.reason or ""),)
        )
    if well and warned:
        return of_warned(found)
    return named(found, diagnose(found.run, found.attempt, case.last_word))


def _ripe(found: RetryContext, told: Diagnosis, inside: bool) -> bool:
    """Whether a verdict that ends the run may be made now. Slurm's last word may tell of a cause that logs do not."""
    case = found.case
    if inside:
        return False
    if told.confidence == "high" or case.last_word is not None or case.files.void is not None or case.record is None:
        return True
    return case.ended is not None and case.now - case.ended > PATIENCE_S


def _follow(found: RetryContext, verdict: VerdictRecord, index: RunIndex | None) -> DriverOutcome:
    """Submit the attempt that the verdict asks for, unless somebody has, or it is not time yet."""
    run, case, scheduler = found.run, found.case, found.scheduler
    if run.attempt(found.attempt.number + 1).path.is_dir():
        return DriverOutcome("waiting", "the next attempt is being made")
    slurm = found.slurm
    if not slurm and verdict.not_before > case.now:
        return DriverOutcome("waiting", f"the next attempt follows in {verdict.not_before - case.now:.0f} s")
    if verdict.withdrawn and case.live is not None:
        with suppress(SchedulerError):
            scheduler.cancel(case.live.job_id)
        return DriverOutcome("waiting", f"job {case.live.job_id} is being taken out of the queue")
    # The old job has to be gone before the new one starts. Slurm sees to that better than anybody who asks it.
    ending = slurm and case.last_word is None and script_ended(case)
    try:
        prepared = following_attempt(run, verdict, case.now, after=case.job_id if ending else None)
        number = found.attempt.number
        _, attempt, job_id = submit_next(run, prepared, scheduler, index=index, ending=ending, number=number)
    except UserError as error:
        return DriverOutcome("waiting", f"the next attempt is due: {error}")
    return DriverOutcome("submitted", f"attempt {attempt.number} is job {job_id}: {verdict.reason}")


def _withdrawn(found: RetryContext) -> DriverOutcome:
    """A job that can never start: after a while it is a failure like any other."""
    told = withdraw(found)
    if told is None:
        return NOTHING
    if isinstance(told, str):
        return DriverOutcome("waiting", told)
    try:
        verdict = readmitting(found, told, withdrawn=True) or make_decision(found, told, withdrawn=True)
        kept, ours = keep_verdict(found.attempt, verdict)
    except OSError:
        return NOTHING
    job_id = found.case.job_id or ""
    if ours:
        Journal(found.run).note("withdrawn", attempt=found.attempt.number, job_id=job_id, reason=kept.reason)
    with suppress(SchedulerError):
        found.scheduler.cancel(job_id)
    return DriverOutcome("waiting", f"job {job_id} can never start and is taken out of the queue: {kept.reason}")
