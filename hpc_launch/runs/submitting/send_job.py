"""Send one job to the scheduler, and find its id also where the scheduler gives no answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs

from hpc_launch.base.errors import (
    NoContact,
    NotWritten,
    SchedulerError,
    SubmitRefused,
    SubmitUnknown,
    Unreachable,
    UsageError,
)
from hpc_launch.base.json_records import read_record, write_record
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.claim import abandon, read_claim
from hpc_launch.runs.records.journal import Journal
from hpc_launch.runs.records.submission import Intent
from hpc_launch.runs.submitting.reconcile import adopt, look_up
from hpc_launch.runs.submitting.run_store import PreparedAttempt, cannot_write, discard
from hpc_launch.schedulers.scheduler import Scheduler, Submission

RENEW_S = 60.0
"""How often a waiting submission renews its intent."""

MOST_SUBMISSIONS = 20
"""How often `wait` submits an attempt again. If two of its jobs ever exist, the second exits at the claim."""

Wait = Callable[[str], None]
"""Wait for a scheduler that does not answer, without limit; called with what is waited for."""


@dataclass(frozen=True)
class AttemptTask:
    """One attempt that is being submitted."""

    run: RunFolder
    attempt: AttemptFolder
    prepared: PreparedAttempt
    scheduler: Scheduler
    journal: Journal
    lookup_s: float
    wait: Wait | None = None


def send_job(task: AttemptTask, submission: Submission) -> str:
    """Submit. Every answer becomes a job id, a refusal on record, or SubmitUnknown."""
    run, attempt = task.run, task.attempt
    for submissions in range(1, MOST_SUBMISSIONS + 1):
        try:
            return task.scheduler.submit(submission)
        except NotWritten as error:
            if read_claim(attempt) is None:
                discard(run, attempt)
            raise cannot_write(run.path, str(error)) from error
        except SubmitRefused as error:
            reason = f"refused: {error}"
            with suppress(OSError):
                abandon(attempt, reason)
            task.journal.note("voided", attempt=attempt.number, reason=reason)
            raise
        except SubmitUnknown as error:
            found = _look_up(task, submission.job_name, error)
            if found is not None:
                return adopt(attempt, found, time.time(), task.journal)
            if task.wait is None or not isinstance(error, NoContact) or submissions == MOST_SUBMISSIONS:
                raise SubmitUnknown(
                    f"the scheduler gave no clear answer, so the job of {run.name} may or may not have been submitted: "
                    f"{error}",
                    hint=f"hpc-launch status {run.name} finds it by its name {submission.job_name}; "
                    "nothing is submitted twice; with --wait, submit waits for the scheduler",
                ) from error
            check_ours(task)
    raise AssertionError("unreachable")


def _look_up(task: AttemptTask, job_name: str, error: SubmitUnknown) -> str | None:
    """The job that a submission without an answer left; with `wait`, once the scheduler answers again."""
    attempt, wait = task.attempt, task.wait
    task.journal.note("no answer", attempt=attempt.number, reason=str(error))
    if wait is None or not isinstance(error, NoContact):
        return look_up(task.scheduler, job_name, task.lookup_s)
    wait(f"the scheduler does not answer: {error}")

    def while_away(error: Unreachable) -> None:
        wait(f"the scheduler does not answer: {error}")
        check_ours(task)
        # Other drivers abandon a submission by its age.
        intent = read_record(attempt.intent, Intent)
        if intent is not None and time.time() - (intent.time or 0) > RENEW_S:
            with suppress(OSError):
                write_record(attempt.intent, structs.replace(intent, time=time.time()))

    return look_up(task.scheduler, job_name, task.lookup_s, while_away)


def check_ours(task: AttemptTask) -> None:
    """Raise UsageError if another process has abandoned the attempt while this one was frozen."""
    claim = read_claim(task.attempt)
    if claim is not None:
        whose = claim.void or f"job {claim.job_id} has it"
        raise UsageError(f"attempt {task.attempt.number} of {task.run.name} was abandoned meanwhile: {whose}")


def check_wanted(task: AttemptTask, job_id: str) -> None:
    """The same check after sbatch: cancel the job, which would otherwise wait in the queue only to exit at once."""
    claim = read_claim(task.attempt)
    if claim is None or claim.job_id == job_id:
        return
    with suppress(SchedulerError):
        task.scheduler.cancel(job_id)
    check_ours(task)
