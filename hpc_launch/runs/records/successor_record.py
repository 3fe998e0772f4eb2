"""successor.json: the run's next job, which waits in the queue while the job of an attempt runs."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from hpc_launch.base.json_records import write_record
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.process_identity import ProcessRecord


class SuccessorRecord(ProcessRecord, frozen=True, kw_only=True):
    """A successor job. The record is created before sbatch, so that a run has at most one for each of its jobs."""

    after: str
    """The job that it waits for."""
    job_name: str | None = None
    time: float | None = None
    """When the submission began, in seconds since the epoch."""
    job_id: str | None = None
    """None while it is being submitted, and where its submitter was killed."""
    refused: str | None = None
    """Why the scheduler refused it."""
    over: bool = False
    """Whether the scheduler reported its end or cancelled it: it is not asked about it again."""


def keep_over(attempt: AttemptFolder, record: SuccessorRecord) -> None:
    """Note that the successor is over, if the run is this user's."""
    with suppress(OSError):
        write_record(attempt.successor, replace(record, over=True))
