"""`submit` and `resubmit` of sweeps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_launch.base.errors import UsageError
from hpc_launch.cli.shared_options import echo_json
from hpc_launch.job.shell_text import visible
from hpc_launch.prepare.prepare_sweep import prepare_sweep
from hpc_launch.prepare.submit_sweep import SweepProgress, create_sweep, submit_points
from hpc_launch.retry.drivers import Schedulers
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index, user_index
from hpc_launch.runs.sweeps.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from hpc_launch.prepare.prepare_sweep import PreparedSweep

MOST_SHOWN = 50
"""Points that `submit --dry-run` lists."""


def submit_sweep(
    job: Path,
    *,
    site: str | None,
    sets: tuple[str, ...],
    wait: bool,
    show: Mapping[str, bool],
    yes: bool,
    as_json: bool,
) -> int:
    """Submit the points of a job file as job arrays, or what `--dry-run` and `--test-only` show of them."""
    from hpc_launch.cli.confirm_cost import confirm_cost
    from hpc_launch.cli.shared_checkpoints import warn_about_shared_checkpoints
    from hpc_launch.cli.submit import test_start, write_dry_run
    from hpc_launch.cli.warn import print_site_and_warnings, warn_about_node_health
    from hpc_launch.schedulers.registry import scheduler_for
    from hpc_launch.view.terminal import waiting_notice

    prepared = prepare_sweep(job, site=site, sets=sets)
    first = prepared.first
    print_site_and_warnings(first.loaded.detected, first.plan.site, prepared.warnings)
    if show["dry_run"]:
        path = write_dry_run(first)
        _show_dry_run(prepared, path, as_json=as_json)
        return 0
    if show["test_only"]:
        return test_start(first, as_json=as_json)
    if not yes:
        confirm_cost(first, len(prepared.points))
    warn_about_node_health(first.plan)
    index = user_index(os.environ)
    warn_about_shared_checkpoints(first.plan, index)
    scheduler = scheduler_for(first.plan.scheduler)
    with waiting_notice(f"submitting {len(prepared.points)} points") as doing:
        sweep = create_sweep(prepared, sets, index=index)
        progress = submit_points(sweep, scheduler, prepared=prepared, index=index, wait=doing if wait else None)
    return _after(sweep, progress, first.plan.scheduler, wait=wait, as_json=as_json)


def resubmit_sweep(
    folder: RunFolder, index: Index, *, sets: Sequence[str], exclude: Sequence[str], wait: bool, as_json: bool
) -> int:
    """Submit the points that failed or were cancelled, each as the next attempt of its run, and those without a job."""
    from hpc_launch.cli.poll_sweeps import poll_sweep
    from hpc_launch.retry.next_attempt import next_attempt
    from hpc_launch.retry.resubmit_points import is_repeated, resubmit_points
    from hpc_launch.runs.records.run_info import read_info
    from hpc_launch.runs.sweeps.cancel_sweep import reopen_sweep
    from hpc_launch.runs.sweeps.point_folder import unsubmitted

    sweep, schedulers = SweepFolder(folder), Schedulers()
    scheduler = schedulers.of(folder)
    status = poll_sweep(folder, index, drive=False)
    with suppress(FileNotFoundError):
        sweep.refused.unlink()
    due = [run for one in status.points if is_repeated(one.status, run := sweep.point(one.point.number))]
    changed = bool(sets or exclude)
    left = [] if os.path.exists(sweep.submitted) else unsubmitted(sweep)
    if changed and status.cancelled and left:
        what = f"{len(left)} points of {sweep.name} were never submitted: --set and --exclude cannot apply to them"
        raise UsageError(what, "resubmit it without them, or submit the job file again with --set")
    if changed and due:
        next_attempt(due[0], sets=sets, exclude=exclude)  # raises what is wrong with the options
    reopen_sweep(sweep)
    progress = SweepProgress(())
    if left and not changed:
        progress = submit_points(sweep, scheduler, index=index)
    again, faults = resubmit_points(sweep, due, scheduler, sets=sets, exclude=exclude, index=index)
    job_ids = [*progress.job_ids, *again.job_ids]
    for fault in faults:
        click.echo(visible(fault), err=True)
    if not job_ids and not progress.left and not again.left:
        what = "nothing was submitted" if faults else f"no point of {sweep.name} failed or was cancelled"
        raise UsageError(what, f"hpc-launch status {sweep.name} lists its points")
    progress = SweepProgress(tuple(job_ids), progress.left + again.left, again.why or progress.why)
    info = read_info(folder)
    code = _after(
        sweep, progress, info.scheduler if info else "", wait=wait, as_json=as_json, repeated_left=again.left > 0
    )
    return code or (4 if faults else 0)


def _after(
    sweep: SweepFolder,
    progress: SweepProgress,
    scheduler: str,
    *,
    wait: bool,
    as_json: bool,
    repeated_left: bool = False,
) -> int:
    """Print what was submitted; with `wait`, follow the sweep to its end. Returns the exit code.

    `repeated_left`: points are left that had a job before, and that only `resubmit` submits.
    """
    if progress.left and scheduler == "local" and not wait and not os.path.exists(sweep.submitted):
        from hpc_launch.retry.sweep_queue import start_queue

        start_queue(sweep)
    if as_json:
        arrays = sweep.arrays()
        first = next(iter(progress.job_ids), None)
        script = str(arrays[0].script) if arrays else None
        answer = {"run": sweep.name, "job_id": first, "script": script, "folder": str(sweep.run.path)}
        points = len(sweep.record.points)
        echo_json({**answer, "jobs": list(progress.job_ids), "points": points, "left": progress.left})
    else:
        submitted = len(sweep.record.points) - progress.left
        jobs = ", ".join(progress.job_ids[:5]) + (", …" if len(progress.job_ids) > 5 else "")
        click.echo(f"{sweep.name}  {submitted} of {len(sweep.record.points)} points  job {jobs or '-'}")
        if progress.left:
            ended = "a process of its own" if scheduler == "local" else "a point that ends"
            who = f"`resubmit {sweep.name}`" if repeated_left else f"{ended}, or `status` or `watch` of the sweep,"
            click.echo(visible(f"{progress.left} points are left: {progress.why}; {who} submits them later"), err=True)
        if not wait:
            click.echo(f"follow it with: hpc-launch status {sweep.name}", err=True)
    if wait:
        from hpc_launch.cli.follow_sweeps import follow_sweeps

        return follow_sweeps([sweep.run])
    return 0


def _show_dry_run(prepared: PreparedSweep, path: Path, *, as_json: bool) -> None:
    from hpc_launch.view.sweep_table import aligned, point_rows

    if as_json:
        answer = {"run": None, "job_id": None, "script": str(path), "folder": None}
        values = [dict(point.values) for point in prepared.points]
        echo_json({**answer, "points": len(values), "values": values})
        return
    click.echo(prepared.first.script, nl=False)
    for line in aligned(point_rows(prepared.points[:MOST_SHOWN])):
        click.echo(line, err=True)
    more = len(prepared.points) - MOST_SHOWN
    omitted = f" ({more} more than shown)" if more > 0 else ""
    click.echo(
        f"dry run: {len(prepared.points)} points{omitted}, not submitted; the script of point 0 is above and in {path}",
        err=True,
    )
