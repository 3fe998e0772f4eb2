"""Submit further points of a sweep from the end of one of its jobs, as its points leave the queue."""

from __future__ import annotations

import os
import time

from hpc_launch.prepare.submit_sweep import SweepProgress, advance
from hpc_launch.retry.driver_outcome import NOTHING, DriverOutcome
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.sweeps.ended_points import look_is_due, note_ended, others_ended_lately, points_ended
from hpc_launch.runs.sweeps.one_submitter import one_submitter
from hpc_launch.runs.sweeps.sweep_folder import SweepFolder, point_number
from hpc_launch.schedulers.scheduler import Scheduler

ROOM_S = 30.0
"""How long to wait until jobs that ended at the same time have left the queue: less than the script gives the hook."""
POLL_S = 5.0


def submit_next_points(run: RunFolder, scheduler: Scheduler) -> DriverOutcome:
    """Submit points of the run's sweep that have no job yet, where there is room for them.

    Of points that end together, one submits. The last to leave its mark finds either the lock free or its holder, who
    counts the marks once more after it has released the lock: so none is missed. Where the limit
    is reached and others of the user's jobs are in the queue, it waits for a moment, if they are points that have just
    ended, or if this is the sweep's last job, after which nobody would look. Raises OSError.
    """
    home = run.sweep
    if home is None or os.path.exists((sweep := SweepFolder(home)).submitted):
        return NOTHING
    number, end = point_number(run), time.monotonic() + ROOM_S
    note_ended(sweep, number)
    job_ids: list[str] = []
    while look_is_due(sweep):
        seen = points_ended(sweep)
        with one_submitter(sweep) as alone:
            if not alone:
                break
            progress = _advance(sweep, scheduler)
            # With the lock: a point that ends meanwhile leaves at once, and makes room.
            while progress.left and not progress.job_ids and time.monotonic() < end:
                last = points_ended(sweep) >= len(sweep.record.points) - progress.left
                if progress.queued == 1 or not (last or others_ended_lately(sweep, number)):
                    break
                time.sleep(POLL_S)
                progress = _advance(sweep, scheduler)
        job_ids += progress.job_ids
        if not progress.left or (not progress.job_ids and points_ended(sweep) == seen):
            break
    return DriverOutcome("submitted", f"further points are job {', '.join(job_ids)}") if job_ids else NOTHING


def _advance(sweep: SweepFolder, scheduler: Scheduler) -> SweepProgress:
    return advance(sweep, scheduler, pause_s=0.0, alone=True) or SweepProgress(())
