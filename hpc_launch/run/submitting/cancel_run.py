"""Ending a run on a person's wish, at whatever moment of its life."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from hpc_launch.base.errors import SchedulerError, Unreachable
from hpc_launch.base.files import read_json, write_json
from hpc_launch.base.user_dirs import user
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.records import values
from hpc_launch.run.records.attempt_files import CANCELLED, AttemptFiles, Reader
from hpc_launch.run.records.final_state import record_of
from hpc_launch.run.records.journal import Journal
from hpc_launch.run.records.run_store import give_up
from hpc_launch.run.records.verdict_record import decided_of
from hpc_launch.run.submitting.reconcile import real_jobs
from hpc_launch.schedulers.scheduler import Scheduler


def cancel_run(run: RunFolder, scheduler: Scheduler, *, undecided: bool = False) -> list[str]:
    """End whatever of the run is alive, and hand back the jobs that were told to end.

    An attempt that no job has claimed yet is given up first, so that it never trains, even where the scheduler does
    not answer now; so is the one that a verdict asks for, and with `undecided` one that a verdict may yet ask for.
    Cancelling what is over already is no error.

    Raises:
        Unreachable: A job that may be running could not be told.
    """
    journal = Journal(run)
    by = user()
    told: list[str] = []
    for attempt in run.attempts():
        files = Reader().read(attempt)
        if files.void is not None or record_of(files.final) is not None:
            continue
        journal.note("cancel asked", attempt=attempt.number, job_id=files.job_id, by=by)
        with suppress(OSError):
            if files.cancel is None and files.end is None:
                write_json(attempt.cancel, {"time": time.time(), "by": by, "host": os.uname().nodename})
            give_up(attempt, f"{CANCELLED} by {by}")
        told.extend(_tell(Reader().read(attempt), scheduler))
    _forestall(run, by, undecided=undecided)
    return sorted(set(told))


def _forestall(run: RunFolder, by: str, *, undecided: bool) -> None:
    """Take the number of the attempt that a verdict asks for, so that no driver makes it."""
    last = next(reversed(run.attempts()), None)
    decided = decided_of(read_json(last.verdict)) if last is not None else None
    if last is None or not (decided.again if decided is not None else undecided):
        return
    following = run.attempt(last.number + 1)
    with suppress(OSError):
        following.path.mkdir(exist_ok=True)
        give_up(following, f"{CANCELLED} by {by}")


def _tell(files: AttemptFiles, scheduler: Scheduler) -> list[str]:
    """Cancel the job, or whatever carries the attempt's name where no id is known."""
    try:
        jobs = [files.job_id] if files.job_id else _by_name(files, scheduler)
        for job_id in jobs:
            scheduler.cancel(job_id)
    except SchedulerError as error:
        if files.void is not None:
            # The job would end at its first act: nothing is left to be told for the run's sake.
            return []
        raise Unreachable(
            f"job {files.job_id} could not be cancelled: {error}", hint="try again when the scheduler answers"
        ) from error
    return jobs


def _by_name(files: AttemptFiles, scheduler: Scheduler) -> list[str]:
    name = values.text(files.intent.get("job_name")) if files.intent else None
    return [job.job_id for job in real_jobs(scheduler.find(name)) if not job.ended_for_good] if name else []
