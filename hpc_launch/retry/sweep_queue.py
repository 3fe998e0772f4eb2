"""The queue of a sweep without a scheduler's: a process that starts its points, `limit` at a time.

`python -m hpc_launch.retry.sweep_queue SWEEP_FOLDER`. Nothing depends on it:
`status` and `watch` start due points, too.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

from hpc_launch.base.files import write_atomic
from hpc_launch.base.python_command import module_command
from hpc_launch.retry.drive_points import drive_points
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import user_index
from hpc_launch.runs.sweeps.sweep_folder import SweepFolder

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
    drive_points(sweep, user_index(os.environ), until_over=True, pause_s=POLL_S, longest_s=math.inf)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
