"""The jobs after the first: queue a run's next job, cancel it, and prepare an attempt in a job that exists already.

Successor: the record with the job's name, created once for each attempt → sbatch → its id in the record. Nothing
depends on this job: it may start an attempt only as any driver may, by claiming the next number, and ends at once
where there is nothing to do (slurm_templates/successor.sh). So one that nobody knows of does no harm.

An attempt in a job that exists: folder → attempt claimed → script → job.json. With job.json the attempt is the job's:
its script starts it when the driver is done. Before that, the attempt counts as one that was never submitted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from hpc_launch.base.errors import SchedulerError, SubmitRefused
from hpc_launch.base.files import write_atomic
from hpc_launch.base.installed import shipped
from hpc_launch.base.json_records import create_record, write_record
from hpc_launch.job.shell_text import quote
from hpc_launch.runs.layout import FOLDER_MODE, AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.run_info import Journal, by_this_process
from hpc_launch.runs.records.submission import Intent, SuccessorRecord, keep_over, new_token, read_claim, write_job
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.reconcile import jobs_to_cancel
from hpc_launch.runs.submitting.run_store import (
    PreparedAttempt,
    checkpoint,
    claim_number,
    discard,
    refusing,
    write_attempt,
    write_programs,
)
from hpc_launch.schedulers.job_files import directives
from hpc_launch.schedulers.scheduler import Scheduler, Submission

SUCCESSOR_STEPS = ("successor recorded", "successor submitted", "successor known")
"""The names of the steps, in order (`checkpoint` in run_store.py)."""

_OF_ONE_ATTEMPT = ("--dependency=", "--begin=")


def send_successor(
    attempt: AttemptFolder,
    prepared: PreparedAttempt,
    scheduler: Scheduler,
    job_id: str,
    *,
    index: Index | None = None,
) -> None:
    """Submit the job that waits for the end of the attempt's job, where the plan wants one. The run goes on without."""
    recovery, run = prepared.plan.recovery, attempt.run
    if recovery is None or not recovery.successor or prepared.scheduler != "slurm":
        return
    token = new_token()
    name = f"{prepared.name}.{token}.next"
    record = SuccessorRecord(after=job_id, job_name=name, time=time.time(), **by_this_process())
    options = [option for option in prepared.options if not option.startswith(_OF_ONE_ATTEMPT)]
    submission = Submission(
        script=_script(run, prepared.script, job_id),
        folder=attempt.successor_folder,
        job_name=name,
        options=(*options, f"--dependency=afterany:{job_id}"),
        environment=prepared.secrets,
    )
    with suppress(OSError, SchedulerError):
        if not create_record(attempt.successor, record):
            return
        checkpoint("successor recorded")
        attempt.successor_folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        try:
            successor = scheduler.submit(submission)
        except SubmitRefused as error:
            write_record(attempt.successor, replace(record, refused=str(error), over=True))
            Journal(run).note("successor", attempt=attempt.number, of=job_id, reason=f"refused: {error}")
            return
        checkpoint("successor submitted")
        write_record(attempt.successor, replace(record, job_id=successor))
        Journal(run).note("successor", attempt=attempt.number, job_id=successor, of=job_id)
        checkpoint("successor known")
        if index is not None:
            index.add(run, successor)


def cancel_successor(run: RunFolder, scheduler: Scheduler, *, before: AttemptFolder | None = None) -> list[str]:
    """Cancel the newest successor, of an attempt before this one, unless it is over. Returns the ids of its jobs.

    A scheduler that does not answer is not an error: the job ends by itself when it starts.
    """
    for attempt in reversed(run.attempts()):
        record = Reader().read(attempt).successor
        if record is None or (before is not None and attempt.number >= before.number):
            continue
        cancelled: list[str] = []
        if record.over or any(Reader().read(later).job_id == record.job_id for later in run.attempts()):
            return []  # as an attempt's job it is cancelled with that
        with suppress(SchedulerError):
            for job_id in jobs_to_cancel(record.job_id, record.job_name, scheduler):
                if job_id != os.environ.get("SLURM_JOB_ID"):
                    scheduler.cancel(job_id)
                    cancelled.append(job_id)
                    keep_over(attempt, record)
                    Journal(run).note("successor cancelled", attempt=attempt.number, job_id=job_id)
        return cancelled
    return []


def _script(run: RunFolder, script: str, job_id: str) -> str:
    """The successor's script: the request of the attempt's script, and the static shell."""
    return "\n".join(
        [
            "#!/bin/bash",
            f"# The next job of {run.name}: takes over if job {job_id} ends before the run does, or else ends at once.",
            *directives(script),
            f"run_dir={quote(str(run.path))} of={quote(job_id)}",
            (shipped("slurm_templates") / "successor.sh").read_text("utf-8"),
        ]
    )


CONTINUE_STEPS = ("claimed", "script", "job")
"""The names of the steps, in order (`checkpoint` in run_store.py)."""


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
            write_programs(run)
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
                **by_this_process(),
            )
            write_record(attempt.intent, intent)
    except BaseException:
        if read_claim(attempt) is None:
            discard(run, attempt)
        raise
    journal.note(job.how, attempt=number, job_id=job.job_id)
    return attempt
