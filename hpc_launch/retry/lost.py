"""A job that Slurm has forgotten and that left no word of its end: after a while its node counts as failed.

That is what remains where a node died, nobody looked for as long as the controller remembers a job (MinJobAge), and
there is no accounting. A script that began cannot be kept from training by its claim, so it has to be over: the cluster
that the job was submitted to says that it has no such job, and nothing in the attempt's folder moves. Should its node
come back, Slurm ends what runs there of a job that it does not know (validate_jobs_on_node, src/slurmctld/job_mgr.c).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from hpc_launch.base.json_records import read_record
from hpc_launch.recover.diagnosis import Diagnosis, Quote
from hpc_launch.retry.decision import RetryContext
from hpc_launch.run.layout import AttemptFolder
from hpc_launch.run.records.submission import SubmittedJob


def lost(found: RetryContext) -> Diagnosis | None:
    """The diagnosis of a forgotten job whose folder was silent for `retry.lost_after`; None for any other."""
    case = found.case
    answer = case.answer
    if not found.slurm or found.status.state != "UNKNOWN" or answer.error is not None or answer.answered is None:
        return None
    if case.record is not None or case.last_word is not None or case.end is not None or case.files.cancel is not None:
        return None
    claim = case.files.claim
    if claim is None or claim.job_id != case.job_id:
        return None  # it never began, so nothing is known of it at all
    silent = case.now - max(_moved(found.attempt), default=case.now)
    if silent < found.plan.retry.lost_after or not _same_cluster(found):
        return None
    words = f"{found.status.reason}; nothing was written for {silent:.0f} s"
    quote = Quote("scheduler", 0, words)
    return Diagnosis("node_failure", cause="node_failure", confidence="low", evidence=(quote,), default_verdict="RETRY")


def _moved(attempt: AttemptFolder) -> Iterator[float]:
    """When the files of the attempt were written to, its logs and the watcher's notes with them."""
    for folder in (attempt.path, attempt.logs, attempt.agent):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat().st_mtime


def _same_cluster(found: RetryContext) -> bool:
    """Whether it is the job's own cluster that does not know it: storage may be shared by several."""
    for attempt in reversed(found.run.attempts()):
        job = read_record(attempt.job, SubmittedJob)
        if job is not None and job.cluster is not None:
            return job.cluster == found.scheduler.cluster()
    return False
