"""Messages of Slurm about other jobs: a training that prints an old log, or one of its children, proves nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from hpc_launch.diagnose.evidence import LogScan

_JOB = re.compile(r"\*\*\* (?:JOB|STEP) (\d+)\b|\bStepId=(\d+)\b")
"""The job in a message of slurmstepd: src/slurmd/slurmstepd/req.c and mgr.c."""


def without_other_jobs(found: Iterable[LogScan], job_id: str | None) -> Iterator[LogScan]:
    """The scans without the messages that name another job than `job_id`."""
    if job_id is None:
        yield from found
        return
    for scan in found:
        hits = tuple(hit for hit in scan.hits if _job(hit.text) in (None, job_id))
        yield scan if len(hits) == len(scan.hits) else replace(scan, hits=hits)


def _job(text: str) -> str | None:
    match = _JOB.search(text)
    return next(filter(None, match.groups())) if match else None
