"""Cancel a sweep: one request for each array, not one for each point."""

from __future__ import annotations

import os
from contextlib import suppress

from hpc_launch.base.errors import SchedulerError, Unreachable
from hpc_launch.base.user_dirs import user
from hpc_launch.runs.groups.array_tasks import attempt_of, begun, tasks_of
from hpc_launch.runs.groups.submit_array import settle_arrays
from hpc_launch.runs.groups.sweep_folder import SweepFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.run_info import refuse_other_users_run
from hpc_launch.runs.records.submission import CANCELLED, abandon, array_of
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.reconcile import still_has_id
from hpc_launch.schedulers.scheduler import Scheduler


def cancel_sweep(sweep: SweepFolder, scheduler: Scheduler) -> list[str]:
    """Cancel the points of a sweep, and return the ids of the arrays and jobs.

    Raises:
        UsageError: The sweep belongs to another user.
        Unreachable: A job that may be running could not be cancelled. The requests stay on record, as for a run.
    """
    sweep.ask_to_cancel()
    by, reader = user(), Reader()
    settle_arrays(sweep, scheduler)
    runs = begun(sweep)
    cancelled: list[str] = []
    unreached: SchedulerError | None = None
    for array in sweep.arrays():
        files = reader.read(array)
        if files.job is None or files.job.job_id is None:
            with suppress(OSError):
                abandon(array, f"{CANCELLED} by {by}")
            continue
        job_id, name = array_of(files.job.job_id), files.intent.job_name if files.intent else None
        if all(_is_over(reader.read(attempt_of(sweep, task))) for task in tasks_of(array)):
            continue
        try:
            if still_has_id(job_id, name, scheduler):
                scheduler.cancel(job_id)
                cancelled.append(job_id)
        except SchedulerError as error:
            unreached = error
    arrays = frozenset(cancelled)
    for run in runs:
        point = reader.read(run.attempts()[-1])
        if point.void is not None or _ended_well(point):
            continue
        # A verdict on an attempt that is over may still ask for the next one.
        try:
            cancelled += cancel_run(run, scheduler, undecided=_is_over(point), by=by, arrays=arrays)
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


def _is_over(files: AttemptFiles) -> bool:
    return files.final is not None or files.end is not None or files.void is not None
