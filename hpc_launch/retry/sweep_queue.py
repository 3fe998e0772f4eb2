"""The queue of a sweep without a scheduler's: a process that starts its points, `limit` at a time.

`python -m hpc_launch.retry.sweep_queue SWEEP_FOLDER`. Nothing depends on it:
`status` and `watch` start due points, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from hpc_launch.base.files import write_atomic
from hpc_launch.base.python_command import module_command
from hpc_launch.drive.submit_sweep import advance
from hpc_launch.retry.drivers import Drivers, Schedulers
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.run_index import user_index
from hpc_launch.run.status.tracker import RunTracker
from hpc_launch.run.sweeps.sweep_folder import SweepFolder

POLL_S = 1.0


def start_queue(sweep: SweepFolder) -> None:
    """Start the process, which outlives this one."""
    log = sweep.run.path / "queue.log"
    write_atomic(log, "")
    with open(log, "ab") as stream:
        subprocess.Popen(
            [*module_command(__name__), str(sweep.run.path)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            cwd="/",
            start_new_session=True,
        )


def main(arguments: list[str]) -> int:
    """Start the points and continue those that fail, until all have ended or the sweep is cancelled."""
    sweep = SweepFolder(RunFolder(Path(arguments[0])))
    index, schedulers = user_index(os.environ), Schedulers()
    while not os.path.exists(sweep.cancel):
        advance(sweep, schedulers.of(sweep.run), index)
        runs = sweep.runs()
        tracker = RunTracker(runs, schedulers.of)
        tracker.poll()
        drivers = Drivers(tracker, index)
        drivers.drive_all(runs)
        over = all(status.final and not status.undecided for status in tracker.last.values())
        if over and os.path.exists(sweep.submitted):
            break
        time.sleep(POLL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
