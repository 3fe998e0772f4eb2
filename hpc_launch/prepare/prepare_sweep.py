"""Prepare a sweep: its points, and the job of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.job.group_keys import Sweep
from hpc_launch.job.job_file import JobSource, override_layer
from hpc_launch.job.sweep_points import SweepFault, SweepPoint, label, points_of
from hpc_launch.plan.strategy_plan import is_batch_argument
from hpc_launch.prepare.prepare import Preparation, PreparedJob, load_job, prepare_job
from hpc_launch.runs.groups.array_tasks import filled
from hpc_launch.runs.groups.group_folder import SweepFolder
from hpc_launch.runs.records.plan_record import plan_record
from hpc_launch.sites.resolved import Resolved

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
    job_file: JobSource, *, points: tuple[SweepPoint, ...] | None = None, **how: Unpack[Preparation]
) -> PreparedSweep:
    """Prepare all points of a job file, or these. Raises Refused with the errors of the first few that have any."""
    sources, loaded = load_job(job_file, **how)
    resolved = loaded.resolved
    sweep, place = resolved.job.sweep or Sweep(), resolved.place("sweep")
    if resolved.site.scheduler.type == "ssh":
        message = f"site {resolved.site.name} has no queue for the points of a sweep"
        hint = "use a site with Slurm, or `--site local`; or submit the points one by one with --set"
        raise Refused([Finding(FindingCode.INVALID_SWEEP, message, place, hint)])
    if points is None:
        try:
            points = points_of(sweep, resolved.merged.written)
        except SweepFault as fault:
            at = resolved.place("sweep", *fault.path)
            raise Refused([Finding(FindingCode.INVALID_SWEEP, str(fault), at, fault.hint)]) from fault

    def job(more: Sequence[str]) -> PreparedJob:
        own: Preparation = {**how, "sets": [*how.get("sets", ()), *more], "sources": sources}
        return prepare_job(job_file, **own)

    shared = _shared_job(points, job)
    own, warnings = _prepare_points(points if shared is None else points[:1], job, place)
    first = own[points[0].number]
    if shared is None:
        jobs = {point.number: PointJob(own[point.number], point.sets) for point in points}
    else:
        jobs = {point.number: PointJob(shared, _marked(point), _values(point)) for point in points}
    return PreparedSweep(sweep, points, first, jobs, warnings, resolved)


def recorded_points(sweep: SweepFolder, numbers: Iterable[int]) -> PreparedSweep:
    """Prepare points from what the sweep's folder recorded. Raises Refused."""
    record, run, wanted = sweep.record, sweep.run, set(numbers)
    points = tuple(point for point in record.points if point.number in wanted)
    folder = record.job_folder or str(run.path)
    return prepare_sweep(run.job_yaml, site=str(run.site_yaml), sets=record.sets, job_folder=folder, points=points)


def _prepare_points(
    points: Sequence[SweepPoint], job: Callable[[Sequence[str]], PreparedJob], place: Place | None
) -> tuple[dict[int, PreparedJob], tuple[Finding, ...]]:
    """The jobs of points by number, and the warnings, each for the first point that has it. Raises Refused.

    `place` is that of `sweep:`, where the values of the points come from.
    """
    jobs: dict[int, PreparedJob] = {}
    findings: dict[tuple[str, str, str], Finding] = {}
    faulty = 0
    for point in points:
        try:
            jobs[point.number] = job(point.sets)
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


def _shared_job(points: Sequence[SweepPoint], job: Callable[[Sequence[str]], PreparedJob]) -> PreparedJob | None:
    """The job that all points share but for the text of some arguments; None where a value may change the plan.

    To be sure, the jobs of the first and the last point are compared with it.
    """
    keys = [[key for key, _ in point.values] for point in points]
    if len(points) < 3 or any(one != keys[0] for one in keys) or not all(map(_is_argument, keys[0])):
        return None
    if not all(_NUMBER.fullmatch(text) for point in points for _, text in point.values):
        return None
    try:
        shared, ends = job(_marked(points[0])), [(points[at], job(points[at].sets)) for at in (0, -1)]
    except Refused:
        return None
    if shared.plan.scheduler != "slurm" or shared.model is not None:
        return None  # another scheduler has no arrays; the model's memory is estimated with the arguments
    for point, own in ends:
        same = filled(shared.script, _values(point)) == own.script and shared.warnings == own.warnings
        if not same or plan_record(shared.plan) != plan_record(own.plan):
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
