"""Ends of an attempt that need no reading of logs: given up, at the time limit, preempted, warned in time."""

from __future__ import annotations

from hpc_launch.recover.diagnosis import Diagnosis, Quote
from hpc_launch.retry.decision import RetryContext, progress_of
from hpc_launch.run.records.claim import CANCELLED, NEVER_SUBMITTED
from hpc_launch.run.status.attempt_view import AttemptView
from hpc_launch.run.status.finished import finished


def of_void(reason: str) -> Diagnosis:
    """What the reason of an attempt that no job will ever run comes to."""
    quote = (Quote("claim", 1, f"void {reason}"),)
    if reason.startswith(CANCELLED):
        return Diagnosis("cancelled_by_user", confidence="high", evidence=quote)
    if reason == NEVER_SUBMITTED:
        return Diagnosis("unknown", confidence="high", evidence=quote)
    return Diagnosis("submit_rejected", confidence="high", evidence=quote, advice=reason)


def of_time_limit(case: AttemptView) -> Diagnosis | None:
    """What the job itself can know of a signal: squeue's reason tells the time limit from a cancel."""
    live = case.live
    if live is None or live.reason != "TimeLimit":
        return None
    quote = Quote(live.source, 0, f"{live.state} {live.reason}")
    return Diagnosis("time_limit", confidence="high", evidence=(quote,), default_verdict="CONTINUE")


def of_preemption(found: RetryContext) -> Diagnosis | None:
    """What the job itself can know while it makes room for another: only the scheduler tells it from a cancel."""
    case = found.case
    live = case.live
    if live is None or live.state != "COMPLETING" or case.files.cancel is not None:
        return None
    if not found.scheduler.preempted(live.job_id):
        return None
    quote = Quote("sacct", 0, f"{live.job_id} PREEMPTED")
    return Diagnosis("preempted", confidence="high", evidence=(quote,), default_verdict="CONTINUE")


def of_warned(found: RetryContext) -> Diagnosis:
    """A training that was warned, saved and ended with 0 goes on, unless it is done or left nothing to go on from."""
    done = finished(found.case.end, found.status.progress)
    if done is True or (done is None and not progress_of(found)[1].further):
        return Diagnosis("success", confidence="high", default_verdict="NONE")
    text = "ended with 0 after the warning before its end" + ("" if done is None else ", before its last step")
    # A TERM that came before the warning is a preemption's (slurm_templates/parts/guard.sh).
    kind = "preempted" if found.case.end is not None and found.case.end.preempted else "time_limit"
    quote = Quote("end.json", 1, text)
    return Diagnosis(kind, confidence="high", evidence=(quote,), default_verdict="CONTINUE")
