"""Submit a sentinel: a small job that runs a driver after the job of an attempt, or after an array of a sweep."""

from __future__ import annotations

from contextlib import suppress

from hpc_launch.base.errors import SchedulerError
from hpc_launch.job.shell_text import quote
from hpc_launch.runs.layout import FOLDER_MODE
from hpc_launch.runs.submitting.send_job import AttemptTask
from hpc_launch.schedulers.scheduler import Submission

_OPTIONS = ("--nodes=1", "--ntasks=1", "--no-requeue")


def submit_sentinel(task: AttemptTask, submission: Submission, job_id: str) -> None:
    """Submit the sentinel of this job, where the plan wants one. The run does not depend on it."""
    run, attempt, recovery = task.run, task.attempt, task.prepared.plan.recovery
    if recovery is None or recovery.sentinel is None:
        return
    script = f"#!/bin/bash\n# Runs the next driver of {run.name} after job {job_id}.\n"
    after = quote(str(run.after))
    script += f"[ -O {after} ] && exec bash {after} {quote(str(attempt.path))} --outside\n"
    options = (*_OPTIONS, f"--dependency=afterany:{job_id}", *recovery.sentinel)
    with suppress(OSError, SchedulerError):
        attempt.sentinel.mkdir(mode=FOLDER_MODE, exist_ok=True)
        # It inherits the submitter's environment, with the secrets that the next attempt needs.
        name = f"{submission.job_name}.sentinel"
        sentinel = Submission(script, attempt.sentinel, name, options, submission.environment)
        sentinel_id = task.scheduler.submit(sentinel)
        task.journal.note("sentinel", attempt=attempt.number, job_id=sentinel_id, of=job_id)
