"""The sentinel: a small job that Slurm starts when a training's job is over, whatever ended it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hpc_launch.base.errors import SchedulerError
from hpc_launch.run.layout import AttemptFolder, RunFolder
from hpc_launch.run.records.journal import Journal
from hpc_launch.schedulers.scheduler import Scheduler, Submission
from hpc_launch.spec.shell_text import quote

SHAPE = ("--nodes=1", "--ntasks=1", "--no-requeue")


def post_sentinel(attempt: AttemptFolder, plan: Mapping[str, Any], job: Submission, job_id: str, to: Scheduler) -> None:
    """Submit a sentinel for a job, where the site wants one (`scheduler.sentinel`). The run does not depend on it."""
    run = RunFolder(attempt.path.parents[1])
    wanted = (plan.get("recovery") or {}).get("sentinel")
    if wanted is None:
        return
    folder = attempt.path / "sentinel"
    script = f"#!/bin/bash\n# Looks after {run.name} when job {job_id} is over.\n"
    script += f"exec bash {quote(str(run.after))} {quote(str(attempt.path))} --outside\n"
    options = (*SHAPE, f"--dependency=afterany:{job_id}", *map(str, wanted))
    with suppress(OSError, SchedulerError):
        folder.mkdir(exist_ok=True)
        # Its environment is the submitter's, with the secrets that another attempt will need.
        sentinel = Submission(script, folder, f"{job.job_name}.sentinel", options, job.environment)
        own = to.submit(sentinel)
        Journal(run).note("sentinel", attempt=attempt.number, job_id=own, of=job_id)
