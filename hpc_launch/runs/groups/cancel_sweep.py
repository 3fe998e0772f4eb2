"""Cancel a sweep: one request for each array, not one for each point."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from hpc_launch.base.errors import SchedulerError, Unreachable
from hpc_launch.base.user_dirs import user
from hpc_launch.runs.groups.submit_array import settle_arrays
from hpc_launch.runs.groups.sweep_folder import SweepFolder, tasks_of
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.run_info import refuse_other_users_run
from hpc_launch.runs.records.submission import CANCELLED, abandon, array_of
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.reconcile import still_has_id
from hpc_launch.schedulers.scheduler import JobRecord, Scheduler


def cancel_sweep(sweep: SweepFolder, scheduler: Scheduler) -> list[str]:
    """Cancel the points of a sweep, and return the ids of the arrays and jobs.

    Raises:
        UsageError: The sweep belongs to another user.
        Unreachable: A job that may be running could not be cancelled. The requests stay on record, as for a run.
    """
    sweep.ask_to_cancel()
    by = user()
    settle_arrays(sweep, scheduler)
    cancelled: list[str] = []
    unreached: SchedulerError | None = None
    arrays: set[str] = set()
    for array in sweep.arrays():
        files = Reader().read(array)
        if files.job is None or files.job.job_id is None:
            with suppress(OSError):
                abandon(array, f"{CANCELLED} by {by}")
            continue
        job_id, name = array_of(files.job.job_id), files.intent.job_name if files.intent else None
        if not any(_is_open(attempt) for _, attempt in tasks_of(array)):
            continue
        try:
            if still_has_id(job_id, name, scheduler):
                scheduler.cancel(job_id)
                arrays.add(job_id)
                cancelled.append(job_id)
        except SchedulerError as error:
            unreached = error
    rest = _WithoutArrays(scheduler, arrays)
    for run in sweep.runs():
        last = next(iter(reversed(run.attempts())), None)
        point = Reader().read(last) if last is not None else None
        if point is None or point.void is not None or _ended_well(point):
            continue
        # A verdict on an attempt that is over may still ask for the next one.
        over = point.final is not None or point.end is not None
        try:
            cancelled += [one for one in cancel_run(run, rest, undecided=over, by=by) if array_of(one) not in arrays]
        except SchedulerError as error:
            unreached = error
    if unreached is not None:
        raise Unreachable(str(unreached), unreached.hint)
    return list(dict.fromkeys(cancelled))


def reopen_sweep(sweep: SweepFolder) -> None:
    """Forget that a sweep was cancelled, before its points are submitted again. Raises OSError."""
    refuse_other_users_run(sweep.run)
    with suppress(FileNotFoundError):
        os.unlink(sweep.cancel)
        os.utime(sweep.run.arrays)  # its final state may be kept


def _ended_well(files: AttemptFiles) -> bool:
    if files.final is not None:
        return files.final.state == "COMPLETED"
    return files.own_end is not None and files.own_end.exit_code == 0


def _is_open(attempt: AttemptFolder) -> bool:
    files = Reader().read(attempt)
    return files.final is None and files.end is None and files.void is None


class _WithoutArrays:
    """The scheduler for the points: the tasks of these arrays are cancelled already."""

    def __init__(self, scheduler: Scheduler, arrays: set[str]) -> None:
        self._scheduler, self._arrays = scheduler, arrays

    def find(self, job_name: str) -> list[JobRecord]:
        return self._scheduler.find(job_name)

    def query(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        rest = [job_id for job_id in job_ids if array_of(job_id) not in self._arrays]
        return self._scheduler.query(rest, fresh=fresh) if rest else {}

    def cancel(self, job_id: str) -> None:
        if array_of(job_id) not in self._arrays:
            self._scheduler.cancel(job_id)
