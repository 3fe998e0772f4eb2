"""Continue a sweep from outside its jobs: submit what is left of it, and drive its points."""

from __future__ import annotations

import os
import time

from hpc_launch.prepare.submit_sweep import advance
from hpc_launch.retry.drivers import Drivers, Schedulers
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.runs.sweeps.sweep_folder import SweepFolder


def drive_points(sweep: SweepFolder, index: Index, *, until_over: bool, pause_s: float, longest_s: float) -> None:
    """Look again and again: until nothing is left to wait for, or, with `until_over`, until all points have ended."""
    end, schedulers, fresh = time.monotonic() + longest_s, Schedulers(), True
    while not os.path.exists(sweep.cancel):
        advance(sweep, schedulers.of(sweep.run), index)
        runs = sweep.begun()
        tracker = RunTracker(runs, schedulers.of)
        tracker.poll(fresh=fresh)
        fresh = False  # what another process asked lately will do, once the end of these jobs is known
        drivers = Drivers(tracker, index)
        drivers.drive_all(runs)
        if until_over:
            over = all(status.final and not status.undecided for status in tracker.last.values())
            over = over and os.path.exists(sweep.submitted)
        else:
            over = not any(drivers.due(status) for status in tracker.last.values())
        if over or time.monotonic() > end:
            return
        time.sleep(pause_s)
