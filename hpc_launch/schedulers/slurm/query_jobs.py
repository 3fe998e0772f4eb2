"""Query the state of jobs: squeue first, then sacct, then squeue by id."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from msgspec.structs import replace

from hpc_launch.base.errors import Unreachable
from hpc_launch.schedulers.scheduler import JobRecord
from hpc_launch.schedulers.slurm import parse_jobs, run_command

_BY_ID = 5
"""Maximum number of jobs unknown to squeue and sacct that one round queries individually."""
_SACCT_IDS = 200
"""Maximum number of ids per sacct call, to limit the length of the command line."""


def from_squeue(*which: str) -> list[JobRecord]:
    """The jobs that the controller knows, including hidden partitions. Raises Unreachable."""
    as_of = time.time()
    command = ["squeue", *which, "--all", "--noheader", "--states=all", f"--Format={parse_jobs.SQUEUE_FORMAT}"]
    return parse_jobs.squeue(run_command.ask(command), as_of)


@lru_cache(maxsize=1)
def _columns() -> tuple[str, ...]:
    return parse_jobs.sacct_columns(run_command.ask(["sacct", "--helpformat"]))


def from_sacct(*options: str) -> list[JobRecord]:
    """The newest accounting records selected by sacct's `options`. Raises Unreachable."""
    as_of = time.time()
    columns = ",".join(_columns())
    return parse_jobs.sacct(
        run_command.ask(["sacct", "--parsable2", "--duplicates", f"--format={columns}", *options]), as_of
    )


def from_sacct_by_id(job_ids: Iterable[str]) -> list[JobRecord]:
    """Accounting records by job id; empty if there is no accounting, which is common."""
    # A whole array, where several of its tasks are wanted: sacct takes longer for a list of tasks.
    names = [job_id.split("+")[0] for job_id in job_ids]
    arrays = Counter(name.partition("_")[0] for name in names)
    ids = sorted({job if arrays[job := name.partition("_")[0]] > 1 else name for name in names})
    records: list[JobRecord] = []
    with contextlib.suppress(Unreachable):
        for start in range(0, len(ids), _SACCT_IDS):
            records += from_sacct(f"--jobs={','.join(ids[start : start + _SACCT_IDS])}")
    # The queue lists the tasks that wait. The row of an array in the accounting keeps tasks that were cancelled.
    return [record for record in records if record.ended_for_good or "[" not in record.job_id]


def ask(job_ids: Iterable[str], known: Mapping[str, JobRecord]) -> list[JobRecord]:
    """One round of queries for all these jobs.

    One squeue call covers all jobs of the user. sacct is queried for jobs that squeue does not know and, once, for
    ended jobs: only sacct has the derived exit code and the steps. Last comes squeue by id: jobs of another user.
    `known`: previous records by id; jobs whose record is complete are not queried again.

    Raises Unreachable if squeue fails. A failing sacct is not an error, because many clusters have none.
    """
    records = from_squeue("--me")
    wanted = list(job_ids)
    table = parse_jobs.RecordTable(records)
    rest = [job_id for job_id in wanted if _incomplete(table.pick(job_id), known.get(job_id))]
    accounted = from_sacct_by_id(rest) if rest else []
    by_id: dict[str, list[JobRecord]] = {}
    for record in accounted:
        by_id.setdefault(record.job_id, []).append(record)
    merged = [_with_details(record, by_id.get(record.job_id, []), known) for record in records]
    merged += [record for record in accounted if table.pick(record.job_id) is None]
    table = parse_jobs.RecordTable(merged)
    unknown = [job_id for job_id in wanted if table.pick(job_id) is None]
    for job_id in unknown[:_BY_ID]:
        with contextlib.suppress(Unreachable):
            merged += from_squeue(f"--jobs={job_id.partition('+')[0]}")
    return merged


def _incomplete(record: JobRecord | None, before: JobRecord | None) -> bool:
    """Whether sacct can add information."""
    if record is None:
        return True
    return record.ended_for_good and not _same_end(record, before)


def _same_end(record: JobRecord, before: JobRecord | None) -> bool:
    """Whether `before` describes the same end of the same start and includes sacct's details."""
    return (
        before is not None
        and before.derived_exit_code is not None
        and (before.state, before.ended, before.job_id) == (record.state, record.ended, record.job_id)
    )


def _with_details(record: JobRecord, accounted: list[JobRecord], known: Mapping[str, JobRecord]) -> JobRecord:
    """squeue's record with sacct's derived exit code and steps, and whether Slurm cancelled it by itself.

    Keeps squeue's exit code: sacct subtracts 128 from codes above 127 (22.05).
    """
    if not record.ended_for_good:
        return record
    # A lagging database may still have the row of an earlier start.
    own = (one for one in accounted if one.job_id == record.job_id and one.submitted == record.submitted)
    before = known.get(record.job_id)
    other = before if _same_end(record, before) else next((one for one in own if one.ended_for_good), None)
    if other is None:
        return record
    return replace(record, derived_exit_code=other.derived_exit_code, steps=other.steps, lost_start=other.lost_start)
