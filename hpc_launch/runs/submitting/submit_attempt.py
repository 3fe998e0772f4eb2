"""Submit an attempt exactly once, even if the process is killed, frozen or left without an answer at any point.

The order is the protocol: folder → attempt claimed → script → intent with a token → sbatch → job.json → index.
Before the intent is written nothing can have been submitted; after it the token finds the job (reconcile.py); and a job
trains only if it creates the attempt's `claim` first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs

from hpc_launch.base.errors import (
    NoContact,
    NotNow,
    NotWritten,
    SchedulerError,
    SubmitRefused,
    SubmitUnknown,
    Unreachable,
    UsageError,
)
from hpc_launch.base.json_records import read_record, write_record
from hpc_launch.job.shell_text import quote
from hpc_launch.runs.layout import FOLDER_MODE, AttemptFolder, RunFolder
from hpc_launch.runs.records.run_info import Journal
from hpc_launch.runs.records.submission import Intent, abandon, array_of, new_intent, read_claim, write_job
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.reconcile import adopt, look_up
from hpc_launch.runs.submitting.run_store import (
    PreparedAttempt,
    cannot_write,
    checkpoint,
    claim_number,
    create_run,
    discard,
    discard_run,
    refusing,
    write_after,
    write_attempt,
    write_programs,
)
from hpc_launch.runs.submitting.successor_job import cancel_successor, send_successor
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
    patient: bool = False
    """Leave nothing of an attempt that the scheduler does not take at present: it is submitted again later."""


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
            if task.patient and isinstance(error, NotNow) and read_claim(attempt) is None:
                discard(run, attempt)
                raise
            reason = f"{error.how}: {error}"
            with suppress(OSError):
                abandon(attempt, reason)
            task.journal.note("voided", attempt=attempt.number, reason=reason)
            raise
        except SubmitUnknown as error:
            found = _look_up(task, submission.job_name, error)
            if found is not None:
                return adopt(attempt, found, time.time(), task.journal, task.scheduler.cluster())
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


def send_and_record(task: AttemptTask, submission: Submission, sent: str, recorded: str) -> str:
    """Submit, and write job.json; `sent` and `recorded` are the names of these steps. Raises as `send_job`."""
    cluster = task.scheduler.cluster()  # for a job that it forgot; it may not answer after sbatch
    submitted = time.time()
    job_id = send_job(task, submission)
    job_id = array_of(job_id) if submission.array else job_id
    checkpoint(sent)
    with suppress(OSError):
        # The job exists, and its token finds it again: a full disk must not make the submission fail now.
        write_job(task.attempt, job_id, submitted, cluster or task.scheduler.cluster())
    task.journal.note("submitted", attempt=task.attempt.number, job_id=job_id)
    checkpoint(recorded)
    check_wanted(task, job_id)
    return job_id


_OPTIONS = ("--nodes=1", "--ntasks=1", "--no-requeue")


def submit_sentinel(task: AttemptTask, submission: Submission, job_id: str) -> None:
    """Submit the sentinel of this job, where the plan wants one. The run does not depend on it."""
    run, attempt, recovery = task.run, task.attempt, task.prepared.plan.recovery
    if recovery is None or recovery.sentinel is None:
        return
    script = f"#!/bin/bash\n# Runs the next monitor of {run.name} after job {job_id}.\n"
    after = quote(str(run.after))
    script += f"[ -O {after} ] && exec bash {after} {quote(str(attempt.path))} --outside\n"
    options = (*_OPTIONS, f"--dependency=afterany:{job_id}", *recovery.sentinel)
    with suppress(OSError, SchedulerError):
        attempt.sentinel.mkdir(mode=FOLDER_MODE, exist_ok=True)
        # It inherits the submitter's environment, with the secrets that the next attempt needs.
        name = f"{submission.job_name}.sentinel"
        sentinel = Submission(script, attempt.sentinel, name, options, submission.environment)
        sentinel_id = task.scheduler.submit(sentinel)
        task.journal.note("sentinel", attempt=attempt.number, job_id=sentinel_id, of=job_id)


STEPS = ("folder", "claimed", "script", "intent", "checked", "submitted", "job", "index")
"""The names of the steps, in order (`checkpoint` in run_store.py)."""

LOOKUP_S = 15.0
"""How long a submission without an answer is looked up before the command fails."""

Submitted = tuple[RunFolder, AttemptFolder, str]


def submit_new(
    prepared: PreparedAttempt,
    scheduler: Scheduler,
    *,
    index: Index | None = None,
    lookup_s: float = LOOKUP_S,
    wait: Wait | None = None,
) -> Submitted:
    """Submit a new run.

    Raises:
        Refused: The run folder cannot be written. Nothing was submitted, and nothing is left on disk.
        SubmitRefused: The scheduler refused the job; the run is kept as STOPPED.
        SubmitUnknown: No answer within `lookup_s` seconds; the error says how to find the job later. With `wait`, only
            where the scheduler answered in a way that is not understood.
    """
    run = create_run(prepared)
    journal = Journal(run)
    try:
        with refusing(run.path):
            journal.write("run created", name=prepared.name, site=prepared.site)
        if index is not None:
            # Before sbatch: a run whose submission is killed or gets no answer must be listed, wherever its folder is.
            index.add(run)
        checkpoint("folder")
        attempt = claim_number(run, 1)
    except BaseException:
        discard_run(run)
        raise
    return run, attempt, _submit(AttemptTask(run, attempt, prepared, scheduler, journal, lookup_s, wait), index)


def submit_next(
    run: RunFolder,
    prepared: PreparedAttempt,
    scheduler: Scheduler,
    *,
    index: Index | None = None,
    lookup_s: float = LOOKUP_S,
    ending: bool = False,
    number: int | None = None,
    wait: Wait | None = None,
    patient: bool = False,
) -> Submitted:
    """Submit the next attempt of a run whose last one is over or void. Raises as `submit_new`.

    `ending`: the last job may still be completing (`still_alive`). `number`: the attempt that this one follows; with a
    later one, another driver was first. `patient`: as for `AttemptTask`.

    Raises:
        UsageError: The last attempt is still alive (the message says what is), or another driver was first.
        Unreachable: Whether it is alive cannot be determined now.
    """
    from hpc_launch.runs.status.tracker import still_alive  # `submit` does not need the tracker

    attempts = run.attempts()
    if attempts:
        alive = still_alive(run, scheduler, ending=ending)
        if alive is not None:
            ending_now = os.path.exists(attempts[-1].cancel) or os.path.exists(attempts[-1].end)
            verb, what = ("watch", "follows it to its end") if ending_now else ("cancel", "ends it")
            raise UsageError(f"{run.name} is not over: {alive}", hint=f"hpc-launch {verb} {run.name} {what}")
    # The number after the one that was examined: this fails where another process has claimed it since.
    last = number if number is not None else attempts[-1].number if attempts else 0
    if index is not None:
        index.resubmitting(run)  # before there is an attempt: a driver that is killed then must not hide it
    attempt = claim_number(run, last + 1)
    task = AttemptTask(run, attempt, prepared, scheduler, Journal(run), lookup_s, wait, patient)
    return run, attempt, _submit(task, index)


def _submit(task: AttemptTask, index: Index | None) -> str:
    run, attempt = task.run, task.attempt
    try:
        with refusing(run.path):
            submission = _prepare(task)
            check_ours(task)
            checkpoint("checked")
    except BaseException:
        # Nothing was submitted yet. If another process abandoned the attempt meanwhile, that stays on record.
        if read_claim(attempt) is None:
            discard(run, attempt)
        raise
    job_id = send_and_record(task, submission, "submitted", "job")
    if index is not None:
        index.add(run, job_id)
    checkpoint("index")
    submit_sentinel(task, submission, job_id)
    cancel_successor(task.run, task.scheduler, before=attempt)
    send_successor(attempt, task.prepared, task.scheduler, job_id, index=index)
    return job_id


def _prepare(task: AttemptTask) -> Submission:
    """Write everything that must be on disk before sbatch. Raises OSError."""
    attempt, prepared, journal = task.attempt, task.prepared, task.journal
    journal.write("attempt claimed", attempt=attempt.number)
    checkpoint("claimed")
    write_programs(task.run)
    write_attempt(attempt, prepared)
    recovery = prepared.plan.recovery
    if recovery is None or recovery.retry.max_attempts != 1 or prepared.plan.notify is not None:
        write_after(task.run)
    checkpoint("script")
    intent = new_intent(prepared.name, attempt.number, prepared.options, prepared.overrides)
    write_record(attempt.intent, intent)
    journal.write("intent", attempt=attempt.number, job_name=intent.job_name)
    checkpoint("intent")
    return Submission(
        script=prepared.script,
        folder=attempt.path,
        job_name=intent.job_name or "",
        options=prepared.options,
        environment=prepared.secrets,
        time_limit_s=prepared.plan.time_limit_s,
        signal_before_s=prepared.plan.signal_before_s,
    )
