"""Prepare an attempt that runs in the job of the attempt before it, exactly once.

The order is the protocol: folder → attempt claimed → script → job.json. With job.json the attempt is the job's: its
script starts it when the end hook is done. Before that, the attempt counts as one that was never submitted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpc_launch.base.files import write_atomic
from hpc_launch.base.json_records import write_record
from hpc_launch.run.layout import AttemptFolder, RunFolder
from hpc_launch.run.records.attempt_files import AttemptFiles
from hpc_launch.run.records.claim import read_claim
from hpc_launch.run.records.journal import Journal
from hpc_launch.run.records.process_identity import process_fields, this_process
from hpc_launch.run.records.submission import Intent, write_job
from hpc_launch.run.submitting.fault_points import checkpoint
from hpc_launch.run.submitting.run_store import PreparedAttempt, claim_number, discard, refusing, write_attempt

STEPS = ("claimed", "script", "job")
"""The names of the steps, in order (fault_points.py)."""


def continue_job(
    run: RunFolder, prepared: PreparedAttempt, before: AttemptFiles, number: int, nodes: Sequence[str]
) -> AttemptFolder:
    """Write attempt `number`, to be started on these nodes in the job of the attempt `before`.

    Raises:
        UsageError: Another driver was first.
        Refused: The run folder cannot be written. Nothing is left of the attempt.
    """
    attempt, journal, job_id = claim_number(run, number), Journal(run), before.job_id or ""
    try:
        with refusing(run.path):
            journal.write("attempt claimed", attempt=number)
            checkpoint("claimed")
            write_attempt(attempt, prepared)
            write_atomic(attempt.hosts, "".join(f"{node}\n" for node in nodes))
            checkpoint("script")
            job = before.job
            write_job(attempt, job_id, time.time(), job.cluster if job is not None else None, restart=before.restart)
            checkpoint("job")
            # Without a token of its own, and after job.json: the name is that of the job, which still runs.
            intent = Intent(
                job_name=before.intent.job_name if before.intent is not None else None,
                time=time.time(),
                overrides=prepared.overrides,
                **process_fields(this_process()),
            )
            write_record(attempt.intent, intent)
    except BaseException:
        if read_claim(attempt) is None:
            discard(run, attempt)
        raise
    journal.note("continued in its job", attempt=number, job_id=job_id)
    return attempt
