"""Cancel a run on a user's request, whatever its state."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

from msgspec import structs

from hpc_launch.base.errors import SchedulerError, Unreachable
from hpc_launch.base.files import user
from hpc_launch.base.json_records import write_record
from hpc_launch.runs.layout import FOLDER_MODE, RunFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.run_info import Journal, refuse_other_users_run
from hpc_launch.runs.records.submission import CANCELLED, abandon, array_of, request_cancel
from hpc_launch.runs.records.verdict_record import read_verdict
from hpc_launch.runs.status.attempt_view import AttemptView
from hpc_launch.runs.submitting.reconcile import jobs_to_cancel
from hpc_launch.runs.submitting.successor_job import cancel_successor
from hpc_launch.schedulers.scheduler import Scheduler


def cancel_run(
    run: RunFolder,
    scheduler: Scheduler,
    *,
    undecided: bool = False,
    by: str = "",
    arrays: frozenset[str] = frozenset(),
) -> list[str]:
    """Cancel all jobs of a run that may be alive, and return their ids. `by` is who asks; default: this user.

    The tasks of `arrays` are cancelled already.

    An attempt that no job has claimed yet is abandoned first, so that it never trains, even if the scheduler does not
    answer now. The same goes for the attempt that a verdict asks for, and with `undecided` for one that a verdict may
    still ask for. Scheduler a run that is over is not an error.

    Raises:
        UsageError: The run belongs to another user.
        Unreachable: A job that may be running could not be cancelled. The request stays on record, and the next driver
            carries it out (`carry_out`).
    """
    refuse_other_users_run(run)
    journal = Journal(run)
    by = by or user()
    unreached: Unreachable | None = None
    alive = []
    for attempt in run.attempts():
        files = Reader().read(attempt)
        if files.void is not None or files.final is not None:
            continue
        alive.append(attempt)
        journal.note("cancel asked", attempt=attempt.number, job_id=files.job_id, by=by)
        with suppress(OSError):
            if files.cancel is None and files.end is None:
                request_cancel(attempt.cancel, by)
            abandon(attempt, f"{CANCELLED} by {by}")
    _block_next_attempt(run, by, undecided=undecided)
    cancelled = cancel_successor(run, scheduler)  # first: it starts when the job that it waits for has ended
    for attempt in alive:
        try:
            cancelled.extend(_cancel(Reader().read(attempt), scheduler, arrays))
        except Unreachable as error:
            unreached = error
    if unreached is not None:
        raise unreached
    return sorted(set(cancelled))


def carry_out(run: RunFolder, views: Iterable[AttemptView], scheduler: Scheduler) -> list[str]:
    """Cancel the jobs whose cancellation is due (`AttemptView.cancel_due`). Returns their ids.

    Raises Unreachable.
    """
    cancelled = []
    for view in views:
        if view.cancel_due:
            cancelled.extend(_cancel(view.files, scheduler))
            Journal(run).note("cancel sent", attempt=view.files.attempt.number, job_id=view.job_id)
    return cancelled


def _block_next_attempt(run: RunFolder, by: str, *, undecided: bool) -> None:
    """Claim the number of the attempt that a verdict asks for, so that no driver submits it."""
    last = next(reversed(run.attempts()), None)
    verdict = read_verdict(last) if last is not None else None
    if last is None or not (verdict.again if verdict is not None else undecided):
        return
    following = run.attempt(last.number + 1)
    with suppress(OSError):
        following.path.mkdir(mode=FOLDER_MODE, exist_ok=True)
        abandon(following, f"{CANCELLED} by {by}")


def _cancel(files: AttemptFiles, scheduler: Scheduler, arrays: frozenset[str] = frozenset()) -> list[str]:
    """Cancel the attempt's job, or all jobs of its name where no id is known. Those of `arrays` are cancelled."""
    intent = files.intent
    done = files.job_id is not None and array_of(files.job_id) in arrays
    try:
        name = intent.job_name if intent is not None else None
        jobs = [] if done else jobs_to_cancel(files.job_id, name, scheduler)
        if files.job_id is None and intent is not None:
            jobs = list(dict.fromkeys(map(intent.job_of, jobs)))
        for job_id in jobs:
            scheduler.cancel(job_id)
        if (jobs or done) and files.cancel is not None:
            with suppress(OSError):
                write_record(files.attempt.cancel, structs.replace(files.cancel, sent=time.time()))
    except SchedulerError as error:
        if files.void is not None:
            # The job would exit at once.
            return []
        hint = "try again when the scheduler answers"
        if files.cancel is not None:
            hint = (
                f"the request is on record: the next `hpc-launch watch {files.attempt.run.name}`, `status` or `list` "
                "cancels the job once the scheduler answers, and no other attempt follows"
            )
        raise Unreachable(f"job {files.job_id} could not be cancelled: {error}", hint=hint) from error
    return jobs
