"""Submit an attempt exactly once, even if the process is killed, frozen or left without an answer at any point.

The order is the protocol: folder → attempt claimed → script → intent with a token → sbatch → job.json → index.
Before the intent is written nothing can have been submitted; send_job.py runs sbatch; after it the token finds the job
(reconcile.py); and a job trains only if it creates the attempt's `claim` first.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from hpc_launch.base.errors import UsageError
from hpc_launch.base.json_records import write_record
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.claim import read_claim
from hpc_launch.runs.records.journal import Journal
from hpc_launch.runs.records.process_identity import process_fields, this_process
from hpc_launch.runs.records.submission import Intent, new_token, write_job
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.fault_points import checkpoint
from hpc_launch.runs.submitting.run_store import (
    PreparedAttempt,
    claim_number,
    create_run,
    discard,
    discard_run,
    refusing,
    write_after,
    write_attempt,
)
from hpc_launch.runs.submitting.send_job import AttemptTask, Wait, check_ours, check_wanted, send_job
from hpc_launch.runs.submitting.sentinel_job import submit_sentinel
from hpc_launch.runs.submitting.successor_job import cancel_successor, send_successor
from hpc_launch.schedulers.scheduler import Scheduler, Submission

STEPS = ("folder", "claimed", "script", "intent", "checked", "submitted", "job", "index")
"""The names of the steps, in order (fault_points.py)."""

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
) -> Submitted:
    """Submit the next attempt of a run whose last one is over or void. Raises as `submit_new`.

    `ending`: the last job may still be completing (`still_alive`). `number`: the attempt that this one follows; with a
    later one, another driver was first.

    Raises:
        UsageError: The last attempt is still alive (the message says what is), or another driver was first.
        Unreachable: Whether it is alive cannot be determined now.
    """
    from hpc_launch.runs.status.still_alive import still_alive  # `submit` does not need the tracker

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
    return run, attempt, _submit(AttemptTask(run, attempt, prepared, scheduler, Journal(run), lookup_s, wait), index)


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
    cluster = task.scheduler.cluster()  # now: the controller may not answer after sbatch
    submitted = time.time()
    job_id = send_job(task, submission)
    checkpoint("submitted")
    with suppress(OSError):
        # The job exists, and its token finds it again: a full disk must not make the submission fail now.
        write_job(attempt, job_id, submitted, cluster or task.scheduler.cluster())
    task.journal.note("submitted", attempt=attempt.number, job_id=job_id)
    checkpoint("job")
    check_wanted(task, job_id)
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
    write_attempt(attempt, prepared)
    recovery = prepared.plan.recovery
    if recovery is None or recovery.retry.max_attempts != 1 or prepared.plan.notify is not None:
        write_after(task.run)
    checkpoint("script")
    token = new_token()
    name = f"{prepared.name}.{token}.{attempt.number}"
    intent = Intent(
        token=token,
        job_name=name,
        time=time.time(),
        options=prepared.options,
        overrides=prepared.overrides,
        **process_fields(this_process()),
    )
    write_record(attempt.intent, intent)
    journal.write("intent", attempt=attempt.number, job_name=name)
    checkpoint("intent")
    return Submission(
        script=prepared.script,
        folder=attempt.path,
        job_name=name,
        options=prepared.options,
        environment=prepared.secrets,
        time_limit_s=prepared.plan.time_limit_s,
        signal_before_s=prepared.plan.signal_before_s,
    )
