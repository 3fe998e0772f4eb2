"""Submit a job, or look at what it would do: its script, its plan, its errors, and where its values are set."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpc_launch.api.job_object import Job, plain, source_of
from hpc_launch.base.errors import Refused
from hpc_launch.base.findings import Finding
from hpc_launch.job.document import flow_yaml
from hpc_launch.job.job_file import has_sweep
from hpc_launch.prepare.prepare import prepare_job, validate_job
from hpc_launch.service.check import announce, check_file
from hpc_launch.service.listener import LOGGED, Listener

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hpc_launch.api.job_keys import SweepKeys
    from hpc_launch.api.run_object import Run
    from hpc_launch.prepare.explain import ExplainedValue
    from hpc_launch.prepare.job_plan import JobLayouts, JobPlan

JobLike = Job | str | os.PathLike[str]
"""A `Job`, or the path of a job file; `nightly.yaml/train` is a stage of a pipeline."""
Sets = Mapping[str, object] | Sequence[str]
"""Values that replace those of a job: by dotted key, `{"nodes": 8, "args.lr": 1e-4}`, or as on the command line."""


def as_sets(values: Sets) -> tuple[str, ...]:
    """Values as the options `--set KEY=VALUE` that a run records."""
    if isinstance(values, Mapping):
        return tuple(f"{key}={flow_yaml(value)}" for key, value in plain(values, "set").items())
    return (values,) if isinstance(values, str) else tuple(values)


def submit(
    job: JobLike,
    *,
    site: str | None = None,
    set: Sets = (),
    confirmed: bool = False,
    keep_trying: bool = False,
    listener: Listener = LOGGED,
) -> Run:
    """Check a job, a sweep or a pipeline and submit it.

    Args:
        job: A `Job`, or the path of a job file.
        site: Site profile, by name or file. Default: the job's own, or detected.
        set: Values that replace those of the job, by dotted key: `{"nodes": 8, "args.lr": 1e-4}`.
        confirmed: Submit it whatever it costs (`confirm_gpu_hours`).
        keep_trying: Where the scheduler does not answer, try again until it does.
        listener: Hears warnings and what is done, and answers questions. Default: the logger `hpc_launch`.

    Raises:
        Refused: The job, the site or the plan has errors, or it costs too much. Nothing was submitted.
        SubmitRefused: The scheduler rejected the job. Nothing was submitted.
        SubmitUnknown: The scheduler did not answer in time, and may have the job; `runs` tells later.
        Unreachable: The scheduler does not answer queries.
    """
    from hpc_launch.api.run_object import Run
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.service import submit as service

    checked = check_file(source_of(job), site=site, sets=as_sets(set), listener=listener)
    submitted = service.submit(checked, user_index(), listener, wait=keep_trying, confirmed=confirmed)
    return Run(submitted.run.path, submission=submitted, listener=listener)


def sweep(
    job: JobLike,
    *,
    site: str | None = None,
    set: Sets = (),
    confirmed: bool = False,
    keep_trying: bool = False,
    listener: Listener = LOGGED,
    **points: Unpack[SweepKeys],
) -> Run:
    """Submit a run for each point: `sweep(job, grid={"args.lr": [1e-4, 3e-4]})`.

    Args:
        job, site, set, confirmed, keep_trying, listener: As for `submit`, as are the errors.
        points: The keys of `sweep:` in a job file, in addition to those that the job has.
    """
    sets = (*as_sets(set), f"sweep={flow_yaml(plain(points, 'sweep'))}")
    return submit(job, site=site, set=sets, confirmed=confirmed, keep_trying=keep_trying, listener=listener)


def run(job: JobLike, *, site: str | None = None, set: Sets = (), listener: Listener = LOGGED) -> Run:
    """Start a job inside the Slurm allocation of this process, or on this machine; it goes on by itself.

    Args:
        job, site, set, listener: As for `submit`, as are the errors.

    Raises:
        UsageError: This process is not inside a Slurm allocation, or the job is a sweep.
    """
    from hpc_launch.api.run_object import Run
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.service.submit import submit_here

    submitted = submit_here(source_of(job), user_index(), listener, site=site, sets=as_sets(set))
    return Run(submitted.run.path, submission=submitted, listener=listener)


def render(
    job: JobLike,
    *,
    site: str | None = None,
    set: Sets = (),
    standalone: bool = False,
    listener: Listener = LOGGED,
) -> str:
    """The script of a job, byte for byte as `submit` passes it to the scheduler; of a sweep, that of its first point.

    Args:
        job, site, set, listener: As for `submit`.
        standalone: Put the parts of runtime.sh into the script, to start it by hand.

    Raises:
        Refused: The job, the site or the plan has errors.
    """
    source, sets = source_of(job), as_sets(set)
    if has_sweep(source, sets):
        from hpc_launch.job.sweep_points import label
        from hpc_launch.prepare.prepare_sweep import prepare_sweep

        found = prepare_sweep(source, site=site, sets=sets, anywhere=True)
        first, prepared = found.points[0], found.first
        listener.say(f"the script of point {first.number} of {len(found.points)}: {label(first.values)}")
    else:
        prepared = prepare_job(source, site=site, sets=sets, anywhere=True)
    announce(prepared, listener, prepared.warnings)
    if not standalone:
        return prepared.script
    from hpc_launch.script.render import render as render_plan

    return render_plan(prepared.plan, standalone=True)


def plan(
    job: JobLike,
    *,
    site: str | None = None,
    set: Sets = (),
    pace_of: Run | None = None,
    listener: Listener = LOGGED,
) -> JobPlan:
    """Layout, batch, memory per GPU, walltime and cost of a job. Errors of the job are among its `findings`.

    Args:
        job, site, set, listener: As for `submit`.
        pace_of: An earlier run whose seconds per step, checkpoint cost and failures count.

    Raises:
        Refused: The job cannot be read, or its size is unknown.
        UsageError: It is too large to plan, or its pace is not known.
    """
    from hpc_launch.prepare.job_plan import job_plan
    from hpc_launch.service.plan import account_balance, checked_for_plan, pace_of_run

    checked = checked_for_plan(source_of(job), site, as_sets(set))
    pace = pace_of_run(pace_of.one()) if pace_of is not None else None
    found = job_plan(checked, pace=pace, balance=account_balance(checked, listener))
    if found is None:
        raise Refused(checked.findings)
    return found


def layouts(
    job: JobLike,
    *,
    site: str | None = None,
    set: Sets = (),
    pace_of: Run | None = None,
) -> JobLayouts:
    """The layouts in which the model of a job fits, the fastest first, by a rough estimate.

    Args:
        job, site, set, pace_of: As for `plan`.

    Raises:
        Refused: The job cannot be read.
        UsageError: Its model, its GPUs or the pace are not known.
    """
    from hpc_launch.prepare.job_plan import job_layouts
    from hpc_launch.service.plan import checked_for_plan, pace_of_run

    checked = checked_for_plan(source_of(job), site, as_sets(set))
    return job_layouts(checked, pace_of_run(pace_of.one()) if pace_of is not None else None)


def validate(job: JobLike, *, site: str | None = None, set: Sets = ()) -> list[Finding]:
    """Every error and warning of a job, of each point of its sweep and of each stage of its pipeline.

    A `Finding` has a code, a message, a place, a hint and a severity. The arguments are those of `submit`.
    """
    return validate_job(source_of(job), site=site, sets=as_sets(set))


def explain(
    job: JobLike,
    *,
    site: str | None = None,
    set: Sets = (),
    of_site: bool = False,
    listener: Listener = LOGGED,
) -> list[ExplainedValue]:
    """Where each value of a job is set: keys, #SBATCH directives and variables; with `of_site`, keys of the profile.

    The other arguments and the errors are those of `render`.
    """
    from hpc_launch.prepare import explain as service

    prepared = prepare_job(source_of(job), site=site, sets=as_sets(set), anywhere=True)
    listener.warn(prepared.warnings)
    return service.explain_site(prepared) if of_site else service.explain(prepared)
