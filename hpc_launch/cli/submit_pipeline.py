"""`submit`, `cancel` and `resubmit` of pipelines and their stages."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_launch.base.errors import UsageError, UserError
from hpc_launch.base.user_dirs import user
from hpc_launch.cli.shared_options import echo_json
from hpc_launch.job.shell_text import visible
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.ownership import refuse_other_users_run
from hpc_launch.runs.pipelines.pipeline_folder import PipelineFolder, as_pipeline, reopen, without_run
from hpc_launch.runs.records.claim import request_cancel
from hpc_launch.runs.run_index import Index, user_index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.sweeps.submit_array import array_jobs
from hpc_launch.runs.sweeps.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from hpc_launch.runs.pipelines.pipeline_status import PipelineStatus


def submit_pipeline(
    job: Path, *, site: str | None, sets: tuple[str, ...], wait: bool, dry_run: bool, yes: bool, as_json: bool
) -> int:
    """Submit the stages of a job file that are due at once; the others follow when those are over."""
    from hpc_launch.cli.confirm_cost import confirm_cost
    from hpc_launch.cli.poll_pipelines import poll_pipeline
    from hpc_launch.cli.warn import print_site_and_warnings, warn_about_node_health
    from hpc_launch.prepare.prepare_pipeline import create_pipeline, prepare_pipeline
    from hpc_launch.view.pipeline_table import waits_for
    from hpc_launch.view.sweep_table import aligned

    prepared = prepare_pipeline(job, site=site, sets=sets)
    first = prepared.first
    print_site_and_warnings(first.loaded.detected, first.plan.site, prepared.warnings)
    if dry_run:
        stages = [(one, prepared.points.get(one.name)) for one in prepared.stages]
        if as_json:
            answer = dict.fromkeys(("run", "job_id", "script", "folder"))
            echo_json({**answer, "stages": dict.fromkeys(one.name for one in prepared.stages)})
            return 0
        rows = [["STAGE", "AFTER", "POINTS"]]
        rows += [[one.name, waits_for(one), "" if points is None else str(points)] for one, points in stages]
        for line in aligned(rows):
            click.echo(line)
        click.echo(f"dry run: not submitted; hpc-launch render {visible(str(job))}/STAGE prints a script", err=True)
        return 0
    for name, one in {} if yes else prepared.jobs.items():
        confirm_cost(one, prepared.points.get(name, 1))
    warn_about_node_health(first.plan)
    index = user_index(os.environ)
    pipeline = create_pipeline(prepared, sets, index=index)
    status = poll_pipeline(pipeline, index)
    return _after(pipeline, status, wait=wait, as_json=as_json)


def cancel_pipeline(pipeline: PipelineFolder, index: Index, cancel: Callable[[RunFolder, Index], str]) -> str:
    """Cancel all stages, those that run by `cancel`. Returns what was done. Raises as `cancel` does."""
    from hpc_launch.cli.poll_pipelines import poll_pipeline

    refuse_other_users_run(pipeline.run)
    before = poll_pipeline(pipeline, index, drive=False)
    if before.stages and all(one.over for one in before.stages):
        return f"{pipeline.name} is already over: {before.as_run().state}"
    _ask(pipeline.cancel)
    words = [cancel(run, index) for run in pipeline.stage_runs()]
    return "\n".join([*(text for text in words if "cancelled job" in text), f"{pipeline.name}: CANCELLED"])


def cancel_stage(folder: RunFolder, index: Index, cancel: Callable[[RunFolder, Index], str]) -> str:
    """Cancel a stage that has not begun, or that runs several times: its folder does not exist."""
    pipeline, stage = without_run(folder)
    refuse_other_users_run(pipeline.run)
    _ask(pipeline.cancelled(stage.name))
    words = [cancel(run, index) for run in pipeline.runs(stage.name).values()]
    return "\n".join([*(text for text in words if "cancelled job" in text), f"{pipeline.name}/{stage.name}: CANCELLED"])


def resubmit_stages(
    folder: RunFolder, index: Index, *, sets: Sequence[str], exclude: Sequence[str], wait: bool, as_json: bool
) -> int:
    """Start again what failed or was cancelled of a pipeline, or of a stage that has no run, or several."""
    from hpc_launch.cli.error_handler import print_error
    from hpc_launch.cli.poll_pipelines import poll_pipeline

    pipeline, stage = as_pipeline(folder), None
    if pipeline is None:
        pipeline, stage = without_run(folder)
    before = poll_pipeline(pipeline, index, drive=False)
    chosen = [one for one in before.stages if stage is None or one.stage.name == stage.name]
    runs = [run for one in chosen for run in one.runs]
    ending = next((run for run in runs if not run.final), None)
    if ending is not None and os.path.exists(pipeline.cancel):
        raise UsageError(f"{ending.run} is not over: {ending.state}", f"hpc-launch watch {ending.run}")
    if (sets or exclude) and (later := [one.stage.name for one in chosen if not one.runs]):
        click.echo(f"--set and --exclude do not apply to stages that have not begun: {', '.join(later)}", err=True)
    done, code = reopen(pipeline, [one.stage.name for one in chosen]), 0
    for run in runs:
        if run.final and not run.undecided and run.state != "COMPLETED":
            try:
                _resubmit(RunFolder(run.folder), index, sets=sets, exclude=exclude)
                done = True
            except UserError as error:
                print_error(error)
                code = error.exit_code
    if not done and code == 0 and not any(one.due for one in chosen):
        waits = next((one.reason for one in chosen if not one.over and not one.runs), None)
        raise UsageError(f"{folder.name} has nothing to start again{f': it {waits}' if waits else ''}")
    return code or _after(pipeline, poll_pipeline(pipeline, index), wait=wait, as_json=as_json)


def _resubmit(run: RunFolder, index: Index, *, sets: Sequence[str], exclude: Sequence[str]) -> None:
    """Submit the next attempt of a run, or of the points of a sweep that did not end well."""
    from hpc_launch.cli.submit_sweep import resubmit_sweep
    from hpc_launch.retry.drivers import Schedulers
    from hpc_launch.retry.next_attempt import next_attempt
    from hpc_launch.runs.submitting.submit_attempt import submit_next

    with redirect_stdout(sys.stderr):
        if os.path.exists(run.sweep_info):
            resubmit_sweep(run, index, sets=sets, exclude=exclude, wait=False, as_json=False)
        else:
            _, prepared = next_attempt(run, sets=sets, exclude=exclude)
            submit_next(run, prepared, Schedulers().of(run), index=index)


def _after(pipeline: PipelineFolder, status: PipelineStatus, *, wait: bool, as_json: bool) -> int:
    """Print what was submitted; with `wait`, follow the pipeline to its end. Returns the exit code."""
    active = [run for stage in status.stages for run in stage.runs if not run.final]
    jobs = [job_id for run in active for job_id in _jobs(run)]
    if as_json:
        answer = {"run": pipeline.name, "job_id": next(iter(jobs), None), "script": None}
        states = {one.stage.name: one.state for one in status.stages}
        echo_json({**answer, "folder": str(pipeline.run.path), "jobs": jobs, "stages": states})
    else:
        click.echo(f"{pipeline.name}  {len(status.stages)} stages  job {', '.join(jobs[:5]) or '-'}")
        if not wait:
            click.echo(f"follow it with: hpc-launch status {pipeline.name}", err=True)
    if wait:
        from hpc_launch.cli.follow_sweeps import follow_sweeps

        return follow_sweeps([pipeline.run])
    return 0


def _jobs(run: RunStatus) -> list[str]:
    """The job of a run, or the arrays of a sweep."""
    if run.job_id is not None:
        return [run.job_id]
    folder = RunFolder(run.folder)
    return list(array_jobs(SweepFolder(folder))) if os.path.exists(folder.sweep_info) else []


def _ask(path: Path) -> None:
    with suppress(OSError):
        if not os.path.exists(path):
            request_cancel(path, user())
