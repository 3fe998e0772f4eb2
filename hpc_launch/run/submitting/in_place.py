"""The next attempt as the same job, put back into the queue: what is written and checked around it.

The order is that of submit.py with another act in the middle: attempt claimed → intent that names the job → held and
changed → still ours → released → job.json. The job, when it starts again, takes an attempt whose intent names it and
that nobody claimed; one that was given up ends it. So no frozen driver that wakes up and no second job doubles it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from hpc_launch.base.errors import SchedulerError, UsageError
from hpc_launch.run.layout import AttemptFolder
from hpc_launch.run.records import values
from hpc_launch.run.records.attempt_files import AttemptFiles
from hpc_launch.run.records.journal import Journal
from hpc_launch.run.status.attempt_view import WAITING_STATES
from hpc_launch.run.submitting.fault_points import checkpoint
from hpc_launch.schedulers.scheduler import LIVE_STATES, HeldJobChange, JobRecord, Scheduler

STEPS = ("held", "released")
"""The names of the steps, for checkpoint.py."""

_HELD = ("JobHeldUser", "JobHeldAdmin", "held state", "held_state", "requeued held")
"""What Slurm's reason for a held job has in it."""


@dataclass(frozen=True)
class Again:
    """The job to put back, under the name that it has, and what changes."""

    job_id: str
    job_name: str
    restart: int
    """How often Slurm had put it back when the attempt began that is over."""
    change: HeldJobChange

    def as_json(self) -> dict[str, object]:
        """For intent.json. The script reads both: whose the attempt is, and the limit that it has now."""
        limit = self.change.time_s
        return {"in_place": self.job_id, "restart": self.restart} | ({"time_limit": limit} if limit is not None else {})


def put_back(
    attempt: AttemptFolder, again: Again, scheduler: Scheduler, journal: Journal, check: Callable[[], None]
) -> int | None:
    """Put the job back and let it go; how often it was by now. None where it cannot be: a new job has to be made.

    `check` raises UsageError where somebody gave the attempt up meanwhile: the job is then taken out of the queue.
    Raises Unreachable where it is not certain what became of the job: reconcile.py settles that later.
    """
    said = scheduler.put_back(again.job_id, again.change)
    checkpoint("held")
    if isinstance(said, str):
        journal.note("not put back", attempt=attempt.number, job_id=again.job_id, reason=said)
        return None
    try:
        check()
    except UsageError:
        with suppress(SchedulerError):
            scheduler.cancel(again.job_id)
        raise
    scheduler.release(again.job_id)
    checkpoint("released")
    journal.note("put back", attempt=attempt.number, job_id=again.job_id, restart=said)
    return said


def named_job(files: AttemptFiles) -> str | None:
    """The job that was to be put back for this attempt; None where a new one was to be submitted."""
    return values.text(files.intent.get("in_place")) if files.intent else None


def went_back(record: JobRecord | None, files: AttemptFiles) -> bool:
    """Whether the job was put back and let go, so that it will start, or has."""
    before = values.whole(files.intent.get("restart")) if files.intent else None
    if record is None or record.restarts is None or before is None:
        return False
    return record.restarts > before and record.state in LIVE_STATES and not is_held(record)


def is_held(record: JobRecord) -> bool:
    """Whether the job waits for somebody to release it."""
    return record.state == "REQUEUE_HOLD" or any(word in (record.reason or "") for word in _HELD)


def take_out(job_id: str, record: JobRecord | None, scheduler: Scheduler) -> None:
    """Take a job out of the queue that was put back for an attempt that is being given up. Raises Unreachable."""
    if record is not None and (record.state in WAITING_STATES or is_held(record)):
        scheduler.cancel(job_id)
