"""Plan a job file that is not where it will be: findings name its final place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding
from hpc_launch.prepare.prepare import PreparedJob, prepare_job


def prepare_elsewhere(job: Path, to: Path, **options: Any) -> PreparedJob:
    """Prepare a job file in a temporary folder; it will be in the folder `to`. Raises Refused."""

    def moved(finding: Finding) -> Finding:
        place = finding.place
        if place is None or not place.file.startswith(f"{job.parent}/"):
            return finding
        return replace(finding, place=replace(place, file=str(to / place.file.removeprefix(f"{job.parent}/"))))

    try:
        prepared = prepare_job(job, **options)
    except Refused as refused:
        raise Refused([moved(finding) for finding in refused.findings]) from None
    return replace(prepared, warnings=tuple(map(moved, prepared.warnings)))
