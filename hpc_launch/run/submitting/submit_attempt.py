"""Submitting an attempt exactly once, whatever moment the process is killed, frozen or left without an answer.

The order is the protocol: folder → attempt claimed → script → intent with a token → sbatch → job.json → index.
Until the intent stands nothing can have been submitted; after it the token finds the job (reconcile.py); and a job
trains only if it creates the attempt's `claim` first.
"""

from __future__ import annotations

import secrets
import string
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from hpc_launch.base.errors import NotWritten, SchedulerError, SubmitRefused, SubmitUnknown, UsageError
from hpc_launch.base.files import write_json
from hpc_launch.run.layout import AttemptFolder, RunFolder
from hpc_launch.run.records import values
from hpc_launch.run.records.attempt_files import read_claim
from hpc_launch.run.records.journal import Journal
from hpc_launch.run.records.process_identity import this_process
from hpc_launch.run.records.run_store import (
    cannot_write,
    claim_number,
    create_run,
    discard,
    discard_run,
    give_up,
    refusing,
    write_after,
    write_attempt,
)
from hpc_launch.run.status.run_status import Prepared
from hpc_launch.run.status.still_alive import still_alive
from hpc_launch.run.submitting.fault_points import checkpoint
from hpc_launch.run.submitting.reconcile import adopt, look_up, write_job
from hpc_launch.run.submitting.sentinel import post_sentinel
from hpc_launch.schedulers.scheduler import Scheduler, Submission

STEPS = ("folder", "claimed", "script", "intent", "checked", "submitted", "job", "index")
"""The names of the steps, in order, for checkpoint.py."""

LOOKUP_S = 15.0
"""How long a submission without an answer is looked up before the user is told."""

Submitted = tuple[RunFolder, AttemptFolder, str]


class RunIndex(Protocol):
    """Where a new run is listed (index.Index)."""

    def add(self, run: RunFolder, job_id: str | None = None) -> None:
        """List the run. Never raises."""


@dataclass(frozen=True)
class _Task:
    """One attempt on its way to the scheduler."""

    run: RunFolder
    attempt: AttemptFolder
    prepared: Prepared
    scheduler: Scheduler
    journal: Journal
    lookup_s: float


def submit_new(
    prepared: Prepared, scheduler: Scheduler, *, index: RunIndex | None = None, lookup_s: float = LOOKUP_S
) -> Submitted:
    """Submit a new run.

    Raises:
        Refused: The run folder cannot be written; nothing was submitted and nothing is left behind.
        SubmitRefused: The scheduler said no; the run is kept as STOPPED.
        SubmitUnknown: No answer within `lookup_s` seconds; the error says how to find out later.
    """
    run = create_run(prepared)
    journal = Journal(run)
    try:
        with refusing(run.path):
            journal.write("run created", name=prepared.name, site=prepared.site)
        if index is not None:
            # Now, so that a run whose submission is killed or gets no answer is listed wherever its folder lies.
            index.add(run)
        checkpoint("folder")
        attempt = claim_number(run, 1)
    except BaseException:
        discard_run(run)
        raise
    return run, attempt, _submit(_Task(run, attempt, prepared, scheduler, journal, lookup_s), index)


def submit_next(
    run: RunFolder,
    prepared: Prepared,
    scheduler: Scheduler,
    *,
    index: RunIndex | None = None,
    lookup_s: float = LOOKUP_S,
    ending: bool = False,
    number: int | None = None,
) -> Submitted:
    """Submit the next attempt of a run whose last one is over for good, or void. Raises as `submit_new`.

    `ending`: the last job may still be cleaning up (`still_alive`). `number`: the attempt that this one follows; where
    there is a later one, somebody was first.

    Raises:
        UsageError: The last attempt is still alive (the message says what is), or another driver was first.
        Unreachable: Whether it is alive cannot be told now.
    """
    attempts = run.attempts()
    if attempts:
        alive = still_alive(run, scheduler, ending=ending)
        if alive is not None:
            ending_now = attempts[-1].cancel.exists() or attempts[-1].end.exists()
            verb, what = ("watch", "follows it to its end") if ending_now else ("cancel", "ends it")
            raise UsageError(f"{run.name} is not over: {alive}", hint=f"hpc-launch {verb} {run.name} {what}")
    # The number after the one that was looked at: where somebody claimed it meanwhile, this fails.
    last = number if number is not None else attempts[-1].number if attempts else 0
    attempt = claim_number(run, last + 1)
    return run, attempt, _submit(_Task(run, attempt, prepared, scheduler, Journal(run), lookup_s), index)


def _submit(task: _Task, index: RunIndex | None) -> str:
    run, attempt = task.run, task.attempt
    try:
        with refusing(run.path):
            submission = _prepare(task)
            _check_ours(task)
            checkpoint("checked")
    except BaseException:
        # Nothing was handed to the scheduler yet. Where somebody gave the attempt up meanwhile, that stays on record.
        if read_claim(attempt) is None:
            discard(run, attempt)
        raise
    submitted = time.time()
    job_id = _hand_over(task, submission)
    checkpoint("submitted")
    with suppress(OSError):
        # The job is there: a full disk now must not make it look as if it were not. Its token finds it again.
        write_job(attempt, job_id, submitted, task.scheduler.cluster())
    task.journal.note("submitted", attempt=attempt.number, job_id=job_id)
    checkpoint("job")
    _check_wanted(task, job_id)
    if index is not None:
        index.add(run, job_id)
    checkpoint("index")
    post_sentinel(attempt, task.prepared.plan, submission, job_id, task.scheduler)
    return job_id


def _prepare(task: _Task) -> Submission:
    """Everything that stands on disk before sbatch. Raises OSError."""
    attempt, prepared, journal = task.attempt, task.prepared, task.journal
    journal.write("attempt claimed", attempt=attempt.number)
    checkpoint("claimed")
    write_attempt(attempt, prepared)
    if _tries_again(prepared):
        write_after(task.run)
    checkpoint("script")
    token = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(8))
    name = f"{prepared.name}.{token}.{attempt.number}"
    intent = {"token": token, "job_name": name, "time": time.time(), "options": list(prepared.options)}
    write_json(attempt.intent, {**intent, "overrides": dict(prepared.overrides), **this_process().as_json()})
    journal.write("intent", attempt=attempt.number, job_name=name)
    checkpoint("intent")
    return Submission(
        script=prepared.script,
        folder=attempt.path,
        job_name=name,
        options=prepared.options,
        environment=prepared.secrets,
    )


def _tries_again(prepared: Prepared) -> bool:
    """Whether the job file lets another attempt follow, so that the job has to call somebody at its end."""
    retry = (prepared.plan.get("recovery") or {}).get("retry") or {}
    return values.whole(retry.get("max_attempts")) != 1


def _hand_over(task: _Task, submission: Submission) -> str:
    """Submit, and make of every answer, or none, what it is: a job id, a refusal on record, or a clear 'unknown'."""
    run, attempt = task.run, task.attempt
    try:
        return task.scheduler.submit(submission)
    except NotWritten as error:
        if read_claim(attempt) is None:
            discard(run, attempt)
        raise cannot_write(run.path, str(error)) from error
    except SubmitRefused as error:
        reason = f"refused: {error}"
        with suppress(OSError):
            give_up(attempt, reason)
        task.journal.note("voided", attempt=attempt.number, reason=reason)
        raise
    except SubmitUnknown as error:
        found = look_up(task.scheduler, submission.job_name, task.lookup_s)
        if found is not None:
            return adopt(attempt, found, time.time(), task.journal)
        raise SubmitUnknown(
            f"the scheduler gave no clear answer, so the job of {run.name} may have been taken or not: {error}",
            hint=f"hpc-launch status {run.name} finds it by its name {submission.job_name}; nothing is submitted twice",
        ) from error


def _check_ours(task: _Task) -> None:
    """Notice that this process slept through its own funeral: somebody gave the attempt up for it."""
    claim = read_claim(task.attempt)
    if claim is not None:
        whose = claim.void or f"job {claim.job_id} has it"
        raise UsageError(f"attempt {task.attempt.number} of {task.run.name} was given up meanwhile: {whose}")


def _check_wanted(task: _Task, job_id: str) -> None:
    """The same after sbatch: the job would end at once by itself; it need not wait in the queue for that."""
    claim = read_claim(task.attempt)
    if claim is None or claim.job_id == job_id:
        return
    with suppress(SchedulerError):
        task.scheduler.cancel(job_id)
    _check_ours(task)
