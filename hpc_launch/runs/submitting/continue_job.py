"""Prepare an attempt that runs in a job that already exists, exactly once: that of the attempt before, or a successor.

The order is the protocol: folder → attempt claimed → script → job.json. With job.json the attempt is the job's: its
script starts it when the driver is done. Before that, the attempt counts as one that was never submitted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpc_launch.base.files import write_atomic
from hpc_launch.base.json_records import write_record
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.records.claim import read_claim
from hpc_launch.runs.records.journal import Journal
from hpc_launch.runs.records.process_identity import process_fields, this_process
from hpc_launch.runs.records.submission import Intent, write_job
from hpc_launch.runs.submitting.fault_points import checkpoint
from hpc_launch.runs.submitting.run_store import PreparedAttempt, claim_number, discard, refusing, write_attempt

STEPS = ("claimed", "script", "job")
"""The names of the steps, in order (fault_points.py)."""


@dataclass(frozen=True)
class OwnJob:
    """The job that this process runs in. `name`: as submitted. `submitted`: when, if no attempt ran in it before."""

    job_id: str
    name: str | None
    cluster: str | None
    restart: int = 0
    submitted: float | None = None
    how: Literal["continued in its job", "taken over"] = "continued in its job"


def continue_job(
    run: RunFolder, prepared: PreparedAttempt, job: OwnJob, number: int, nodes: Sequence[str]
) -> AttemptFolder:
    """Write attempt `number`, to be started on these nodes in a job.

    Raises:
        UsageError: Another driver was first.
        Refused: The run folder cannot be written. Nothing is left of the attempt.
    """
    attempt, journal = claim_number(run, number), Journal(run)
    try:
        with refusing(run.path):
            journal.write("attempt claimed", attempt=number)
            checkpoint("claimed")
            write_attempt(attempt, prepared)
            write_atomic(attempt.hosts, "".join(f"{node}\n" for node in nodes))
            checkpoint("script")
            submitted = job.submitted if job.submitted is not None else time.time()
            write_job(attempt, job.job_id, submitted, job.cluster, restart=job.restart)
            checkpoint("job")
            # Without a token of its own, and after job.json: the name is that of the job, which still runs.
            intent = Intent(
                job_name=job.name,
                time=submitted,
                overrides=prepared.overrides,
                **process_fields(this_process()),
            )
            write_record(attempt.intent, intent)
    except BaseException:
        if read_claim(attempt) is None:
            discard(run, attempt)
        raise
    journal.note(job.how, attempt=number, job_id=job.job_id)
    return attempt
