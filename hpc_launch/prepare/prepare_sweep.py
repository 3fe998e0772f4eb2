"""Prepare a sweep: its points, and the job of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from hpc_launch.base.errors import Refused
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding, Place
from hpc_launch.job.group_keys import Sweep
from hpc_launch.job.job_file import override_layer
from hpc_launch.job.sweep_points import SweepFault, SweepPoint, label, points_of
from hpc_launch.prepare.prepare import PreparedJob, detect_site, is_elsewhere, prepare_job
from hpc_launch.runs.groups.sweep_folder import SweepFolder
from hpc_launch.sites.load_layers import JobSources, read_sources, resolve
from hpc_launch.sites.resolved import Resolved

MOST_FAULTY = 5
"""Points whose errors are reported."""


class PreparedSweep(Struct, frozen=True):
    """A sweep whose points passed every check."""

    sweep: Sweep
    points: tuple[SweepPoint, ...]
    jobs: dict[int, PreparedJob]
    """The prepared jobs by the number of their points."""
    warnings: tuple[Finding, ...]
    resolved: Resolved
    """The job without the values of any point."""

    @property
    def first(self) -> PreparedJob:
        """The job of the first point."""
        return next(iter(self.jobs.values()))


def prepare_sweep(
    job_file: Path,
    *,
    site: str | None = None,
    sets: Sequence[str] = (),
    job_folder: str | None = None,
    anywhere: bool = False,
    sources: JobSources | None = None,
) -> PreparedSweep:
    """Prepare all points of a job file. Raises Refused with the errors of the first few points that have any.

    `sources`: the files of the job, where they were read already.
    """
    sources = sources or read_sources(job_file, site=site, sets=sets, detect=detect_site)
    away = is_elsewhere if anywhere else None
    resolved = resolve(sources, sets=sets, job_folder=job_folder, elsewhere=away).resolved
    sweep = resolved.job.sweep or Sweep()
    if resolved.site.scheduler.type == "ssh":
        message = f"site {resolved.site.name} has no queue for the points of a sweep"
        hint = "use a site with Slurm, or `--site local`; or submit the points one by one with --set"
        raise Refused([Finding(FindingCode.INVALID_SWEEP, message, resolved.place("sweep"), hint)])
    try:
        points = points_of(sweep, resolved.merged.written)
    except SweepFault as fault:
        place = resolved.place("sweep", *fault.path)
        raise Refused([Finding(FindingCode.INVALID_SWEEP, str(fault), place, fault.hint)]) from fault
    place = resolved.place("sweep")
    jobs, warnings = _prepare_points(points, sources, sets, job_folder, place, anywhere=anywhere)
    return PreparedSweep(sweep, points, jobs, warnings, resolved)


def recorded_points(sweep: SweepFolder, numbers: Sequence[int]) -> PreparedSweep:
    """Prepare points from what the sweep's folder recorded. Raises Refused."""
    record, run = sweep.record, sweep.run
    sources = read_sources(run.job_yaml, site=str(run.site_yaml), sets=record.sets)
    folder, wanted = record.job_folder or str(run.path), set(numbers)
    points = tuple(point for point in record.points if point.number in wanted)
    resolved = resolve(sources, sets=record.sets, job_folder=folder).resolved
    jobs, warnings = _prepare_points(points, sources, record.sets, folder, resolved.place("sweep"))
    return PreparedSweep(resolved.job.sweep or Sweep(), points, jobs, warnings, resolved)


def _prepare_points(
    points: Sequence[SweepPoint],
    sources: JobSources,
    sets: Sequence[str],
    job_folder: str | None,
    place: Place | None,
    *,
    anywhere: bool = False,
) -> tuple[dict[int, PreparedJob], tuple[Finding, ...]]:
    """The jobs of points by number, and the warnings, each for the first point that has it. Raises Refused.

    `place` is that of `sweep:`, where the values of the points come from.
    """
    jobs: dict[int, PreparedJob] = {}
    findings: dict[tuple[str, str, str], Finding] = {}
    faulty = 0
    for point in points:
        try:
            jobs[point.number] = prepare_job(
                sources.job_file,
                sets=[*sets, *point.sets],
                job_folder=job_folder,
                anywhere=anywhere,
                sources=sources,
            )
            found: Sequence[Finding] = jobs[point.number].warnings
        except Refused as refused:
            faulty += 1
            found = refused.findings
        own = {str(where) for where in override_layer(point.sets, []).places.values()} if found else set()
        for one in found:
            where = place if str(one.place) in own else one.place
            message = f"point {point.number} ({label(point.values)}): {one.message}"
            findings.setdefault((one.code, str(where), one.message), structs.replace(one, message=message, place=where))
        if faulty == MOST_FAULTY:
            break
    if faulty:
        raise Refused(list(findings.values()))
    return jobs, tuple(findings.values())
