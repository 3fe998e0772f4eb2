"""Asks Slurm for the state of jobs: the controller's queue first, then the accounting, then the controller by id."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from hpc_launch.base.errors import Unreachable
from hpc_launch.schedulers.scheduler import JobRecord
from hpc_launch.schedulers.slurm import parse_jobs, run_command

_BY_ID = 5
"""So many jobs that neither squeue nor sacct knows are asked for one by one; more wait for the next time."""
_SACCT_IDS = 200
"""Ids in one call of sacct: a longer list is cut into calls, so that no command line is too long."""


def from_squeue() -> list[JobRecord]:
    """All jobs of this user that the controller remembers, those in hidden partitions too. Raises Unreachable."""
    as_of = time.time()
    words = ["squeue", "--me", "--all", "--noheader", "--states=all", f"--Format={parse_jobs.SQUEUE_FORMAT}"]
    return parse_jobs.squeue(run_command.ask(words), as_of)


@lru_cache(maxsize=1)
def _columns() -> tuple[str, ...]:
    return parse_jobs.sacct_columns(run_command.ask(["sacct", "--helpformat"]))


def from_sacct(*which: str) -> list[JobRecord]:
    """The newest accounting records that `which` (sacct's own options) names. Raises Unreachable."""
    as_of = time.time()
    columns = ",".join(_columns())
    return parse_jobs.sacct(
        run_command.ask(["sacct", "--parsable2", "--duplicates", f"--format={columns}", *which]), as_of
    )


def from_sacct_by_id(job_ids: Iterable[str]) -> list[JobRecord]:
    """The same by id; nothing where there is no accounting, which is normal and said nowhere."""
    ids = sorted({job_id.split("+")[0] for job_id in job_ids})
    records: list[JobRecord] = []
    with contextlib.suppress(Unreachable):
        for start in range(0, len(ids), _SACCT_IDS):
            records += from_sacct(f"--jobs={','.join(ids[start : start + _SACCT_IDS])}")
    return records


def from_scontrol(job_id: str) -> list[JobRecord]:
    """What the controller remembers of one job, whoever's it is; nothing if it does not."""
    as_of = time.time()
    answer = run_command.run(["scontrol", "--oneliner", "show", "job", job_id])
    return parse_jobs.scontrol(answer.output, as_of) if answer.code == 0 else []


def ask(job_ids: Iterable[str], known: Mapping[str, JobRecord]) -> list[JobRecord]:
    """One round of questions about all these jobs.

    squeue answers for all jobs of the user in one call. sacct is asked for those that squeue does not know, and
    for those that it calls over, once: it alone has the derived exit code and the steps. scontrol comes last.

    Args:
        job_ids: The jobs that somebody wants to know of.
        known: What was known before, by id: a job that was complete then is not asked for again.

    Raises:
        Unreachable: squeue has no answer. A failing sacct is no fault: many clusters have none.
    """
    records = from_squeue()
    wanted = list(job_ids)
    rest = [job_id for job_id in wanted if _incomplete(parse_jobs.pick(job_id, records), known.get(job_id))]
    accounted = from_sacct_by_id(rest) if rest else []
    merged = [_with_details(record, accounted, known) for record in records]
    merged += [record for record in accounted if parse_jobs.pick(record.job_id, records) is None]
    unknown = [job_id for job_id in wanted if parse_jobs.pick(job_id, merged) is None]
    for job_id in unknown[:_BY_ID]:
        with contextlib.suppress(Unreachable):
            merged += from_scontrol(job_id)
    return merged


def _incomplete(record: JobRecord | None, before: JobRecord | None) -> bool:
    """Whether sacct has something to add."""
    if record is None:
        return True
    return record.ended_for_good and not _same_end(record, before)


def _same_end(record: JobRecord, before: JobRecord | None) -> bool:
    """Whether `before` is the same end of the same start, with the accounting's details."""
    return (
        before is not None
        and before.derived_exit_code is not None
        and (before.state, before.ended, before.job_id) == (record.state, record.ended, record.job_id)
    )


def _with_details(record: JobRecord, accounted: list[JobRecord], known: Mapping[str, JobRecord]) -> JobRecord:
    """The queue's record with the derived exit code and the steps of the accounting.

    The queue's own exit code stays: sacct prints codes over 127 less 128 (22.05).
    """
    if not record.ended_for_good:
        return record
    before = known.get(record.job_id)
    if before is not None and _same_end(record, before):
        return replace(record, derived_exit_code=before.derived_exit_code, steps=before.steps)
    for other in accounted:
        # A database that lags may still hold the row of an earlier start.
        if other.job_id == record.job_id and other.ended_for_good and other.submitted == record.submitted:
            return replace(record, derived_exit_code=other.derived_exit_code, steps=other.steps)
    return record
