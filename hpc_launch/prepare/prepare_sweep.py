"""Prepare a sweep: its points, and the job of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct, structs

from hpc_launch.base.errors import Refused
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.base.findings import Finding
from hpc_launch.job.group_keys import Sweep
from hpc_launch.job.job_file import override_layer
from hpc_launch.job.sweep_points import SweepFault, SweepPoint, label, points_of
from hpc_launch.plan.strategy_plan import is_batch_argument
from hpc_launch.prepare.prepare import PreparedJob, detect_site, is_elsewhere, prepare_job
from hpc_launch.runs.groups.array_tasks import filled
from hpc_launch.runs.groups.group_folder import SweepFolder
from hpc_launch.runs.records.plan_record import plan_record
from hpc_launch.sites.load_layers import JobSources, read_sources, resolve
from hpc_launch.sites.resolved import Resolved

MOST_FAULTY = 5
"""Points whose errors are reported."""
_MARK = "HPC_LAUNCH_VALUE_{}_"
"""Stands for the value of an argument in the script that points share."""
_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?", re.ASCII)


class PointJob(Struct, frozen=True):
    """The job of a point. Points that differ only in arguments of the training share it, with marks for these."""

    job: PreparedJob
    sets: tuple[str, ...]
    """What the point adds to the `--set` options."""
    values: Mapping[str, str] = {}
    """The text for each mark."""


class PreparedSweep(Struct, frozen=True):
    """A sweep whose points passed every check."""

    sweep: Sweep
    points: tuple[SweepPoint, ...]
    first: PreparedJob
    """The job of the first point."""
    jobs: Mapping[int, PointJob]
    """The jobs by the number of their points."""
    warnings: tuple[Finding, ...]
    resolved: Resolved
    """The job without the values of any point."""


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
    return _prepare_points(sweep, points, resolved, Preparing(sources, sets, job_folder, anywhere=anywhere))


def recorded_points(sweep: SweepFolder, numbers: Sequence[int]) -> PreparedSweep:
    """Prepare points from what the sweep's folder recorded. Raises Refused."""
    record, run = sweep.record, sweep.run
    sources = read_sources(run.job_yaml, site=str(run.site_yaml), sets=record.sets)
    folder, wanted = record.job_folder or str(run.path), set(numbers)
    points = tuple(point for point in record.points if point.number in wanted)
    resolved = resolve(sources, sets=record.sets, job_folder=folder).resolved
    return _prepare_points(resolved.job.sweep or Sweep(), points, resolved, Preparing(sources, record.sets, folder))


@dataclass(frozen=True)
class Preparing:
    """How the job of each point is prepared: as for `prepare_sweep`."""

    sources: JobSources
    sets: Sequence[str]
    job_folder: str | None
    anywhere: bool = False

    def job(self, sets: Sequence[str]) -> PreparedJob:
        """The job with these options of a point. Raises Refused."""
        return prepare_job(
            self.sources.job_file,
            sets=[*self.sets, *sets],
            job_folder=self.job_folder,
            anywhere=self.anywhere,
            sources=self.sources,
        )


def _prepare_points(
    sweep: Sweep, points: tuple[SweepPoint, ...], resolved: Resolved, preparing: Preparing
) -> PreparedSweep:
    """Prepare points; each warning is that of the first point that has it. Raises Refused."""
    jobs: dict[int, PreparedJob] = {}
    findings: dict[tuple[str, str, str], Finding] = {}
    faulty, place = 0, resolved.place("sweep")  # where the values of the points come from
    shared = _shared_job(points, preparing)
    for point in points if shared is None else points[:1]:
        try:
            jobs[point.number] = preparing.job(point.sets)
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
    first = jobs[points[0].number]
    if shared is None:
        own_jobs = {point.number: PointJob(jobs[point.number], point.sets) for point in points}
        return PreparedSweep(sweep, points, first, own_jobs, tuple(findings.values()), resolved)
    sets = _marked(points[0])
    of_all = {point.number: PointJob(shared, sets, _values(point)) for point in points}
    return PreparedSweep(sweep, points, first, of_all, tuple(findings.values()), resolved)


def _shared_job(points: Sequence[SweepPoint], preparing: Preparing) -> PreparedJob | None:
    """The job that all points share but for the text of some arguments; None where a value may change the plan.

    To be sure, the jobs of the first and the last point are compared with it.
    """
    keys = [[key for key, _ in point.values] for point in points]
    if len(points) < 3 or any(one != keys[0] for one in keys) or not all(map(_is_argument, keys[0])):
        return None
    texts = [text for point in points for _, text in point.values]
    if not all(map(_NUMBER.fullmatch, texts)):
        return None
    try:
        shared, ends = preparing.job(_marked(points[0])), [preparing.job(points[at].sets) for at in (0, -1)]
    except Refused:
        return None
    if shared.plan.scheduler != "slurm" or shared.model is not None:
        return None  # another scheduler has no arrays; the model's memory is estimated with the arguments
    for point, job in zip((points[0], points[-1]), ends, strict=True):
        same = filled(shared.script, _values(point)) == job.script and shared.warnings == job.warnings
        if not same or plan_record(shared.plan) != plan_record(job.plan):
            return None
    return shared


def _is_argument(key: str) -> bool:
    """Whether a key of a sweep is an argument whose value no check reads."""
    head, _, name = key.partition(".")
    return head == "args" and bool(name) and "." not in name and not is_batch_argument(name)


def _marked(point: SweepPoint) -> tuple[str, ...]:
    return tuple(f"{key}={_MARK.format(at)}" for at, (key, _) in enumerate(point.values))


def _values(point: SweepPoint) -> dict[str, str]:
    return {_MARK.format(at): text for at, (_, text) in enumerate(point.values)}
