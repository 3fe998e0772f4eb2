"""Submit further points of a sweep from the end of one of its jobs, as its points leave the queue."""

from __future__ import annotations

import os
import time

from hpc_launch.drive.submit_sweep import advance
from hpc_launch.retry.driver_outcome import NOTHING, DriverOutcome
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.sweeps.ended_points import look_is_due, note_ended, others_ended_lately
from hpc_launch.run.sweeps.sweep_folder import SweepFolder
from hpc_launch.schedulers.scheduler import Scheduler

ROOM_S = 30.0
"""How long to wait until jobs that ended at the same time have left the queue: less than the script gives the hook."""
POLL_S = 5.0


def submit_next_points(run: RunFolder, scheduler: Scheduler) -> DriverOutcome:
    """Submit points of the run's sweep that have no job yet, where there is room for them.

    Of points that end together, one submits. The last to leave its mark finds either the lock free or its holder, who
    counts the marks once more after it has released the lock: so none is missed. Raises OSError.
    """
    home = run.sweep
    if home is None or os.path.exists((sweep := SweepFolder(home)).submitted):
        return NOTHING
    number, end = int(run.path.name.rpartition(".")[2]), time.monotonic() + ROOM_S
    note_ended(sweep, number)
    job_ids: list[str] = []
    while look_is_due(sweep):
        progress = advance(sweep, scheduler, pause_s=0.0)
        if progress is None or progress.busy:
            break
        job_ids += progress.job_ids
        if not progress.left or time.monotonic() > end:
            break
        if not progress.job_ids:
            if not others_ended_lately(sweep, number):
                break
            time.sleep(POLL_S)
    return DriverOutcome("submitted", f"further points are job {', '.join(job_ids)}") if job_ids else NOTHING
