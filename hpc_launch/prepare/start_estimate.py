"""When the scheduler would start a job."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.schedulers.scheduler import Scheduler, Submission


def start_estimate(ready: PreparedJob, scheduler: Scheduler) -> str:
    """The scheduler's estimate of when and where the job would start. Raises SubmitRefused, Unreachable."""
    with tempfile.TemporaryDirectory(prefix="hpc-launch-") as folder:
        return scheduler.test_only(Submission(ready.script, Path(folder), ready.plan.name))
