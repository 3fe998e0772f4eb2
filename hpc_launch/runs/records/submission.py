"""intent.json and job.json: what a driver is about to submit, and the job that came of it."""

from __future__ import annotations

import secrets
import string

from msgspec import Struct, structs

from hpc_launch.base.json_records import create_record
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.process_identity import ProcessRecord


class Overrides(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an attempt differs from the job file."""

    set: tuple[str, ...] = ()
    """Its `--set` options."""
    exclude: tuple[str, ...] = ()
    """Nodes that the run excludes."""
    readmitted: tuple[str, ...] = ()
    """Nodes that the run no longer excludes."""
    ledger: tuple[str, ...] = ()
    """Nodes excluded because the node health store lists them."""

    def by_name(self) -> dict[str, tuple[str, ...]]:
        """The differences there are, by name."""
        return {name: values for name, values in structs.asdict(self).items() if values}


class Intent(ProcessRecord, frozen=True, kw_only=True):
    """intent.json: written before sbatch, so that the token finds the job whatever happens to the driver."""

    token: str = ""
    job_name: str | None = None
    time: float | None = None
    """When the submission began, in seconds since the epoch."""
    options: tuple[str, ...] = ()
    """sbatch options of this attempt only."""
    overrides: Overrides = Overrides()
    task: int | None = None
    """The task of a job array that is to run the attempt; None for a job of its own."""

    def job_of(self, found: str) -> str:
        """The job of this attempt, where a job `found` has the intent's name."""
        return found if self.task is None else f"{array_of(found)}_{self.task}"


def new_token() -> str:
    """The part of a job's name by which a lost submission is found again."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(8))


def array_of(job_id: str) -> str:
    """The id of the job array that a task such as `12_7` or `12_[8-9]` belongs to."""
    return job_id.partition("_")[0]


class SubmittedJob(Struct, frozen=True, kw_only=True):
    """job.json: the job of an attempt."""

    job_id: str | None = None
    submitted: float | None = None
    restart: int | None = None
    """How often Slurm had requeued the job when the attempt began."""
    cluster: str | None = None


def write_job(
    attempt: AttemptFolder, job_id: str, submitted: float, cluster: str | None = None, *, restart: int = 0
) -> bool:
    """Create job.json; true for the process that created it. Raises OSError."""
    record = SubmittedJob(job_id=job_id, submitted=submitted, restart=restart, cluster=cluster)
    return create_record(attempt.job, record)
