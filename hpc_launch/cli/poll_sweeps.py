"""The state of sweeps: each is polled by its points."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from hpc_launch.base.errors import UserError
from hpc_launch.cli.shared_options import echo_json
from hpc_launch.job.shell_text import visible
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.sweeps.sweep_folder import SweepFolder
from hpc_launch.runs.sweeps.sweep_status import SweepStatus, stamps_of, sweep_status, with_sweeps


def poll_sweep(run: RunFolder, index: Index, *, drive: bool = True) -> SweepStatus:
    """The state of one sweep."""
    found = poll_groups([run], index, drive=drive)[run.name]
    return found if isinstance(found, SweepStatus) else sweep_status(SweepFolder(run), {})


def show_sweep(run: RunFolder, index: Index, *, as_json: bool) -> None:
    """`status SWEEP`: a table of its points, with the best one."""
    status = poll_sweep(run, index)
    if as_json:
        echo_json(status.as_json())
        return
    from hpc_launch.view.sweep_table import sweep_lines
    from hpc_launch.view.terminal import write_lines

    write_lines(sweep_lines(status), sys.stdout)


def poll_groups(runs: Sequence[RunFolder], index: Index, *, drive: bool) -> dict[str, RunStatus | SweepStatus]:
    """The states of runs of which some are sweeps or points of them, by name."""
    from hpc_launch.cli.follow import poll_plain_runs

    sweeps = {run.name: SweepFolder(run) for run in runs if os.path.exists(run.sweep_info)}
    homes = {**sweeps, **{home.name: SweepFolder(home) for run in runs if (home := run.sweep) is not None}}
    for sweep in homes.values():
        if drive:
            _advance(sweep, index)
    stamps = stamps_of(sweeps.values())
    singles = [run for run in runs if run.name not in sweeps]
    points = [point for sweep in sweeps.values() for point in sweep.begun()]
    polled = list({run.name: run for run in [*singles, *points]}.values())
    found = poll_plain_runs(polled, index, drive=drive) if polled else []
    statuses = {run.name: status for run, status in zip(polled, found, strict=True)}
    return with_sweeps(statuses, sweeps.values(), stamps)


def _advance(sweep: SweepFolder, index: Index) -> None:
    """Submit what is left of a sweep."""
    if os.path.exists(sweep.submitted):
        return
    from hpc_launch.prepare.submit_sweep import advance
    from hpc_launch.retry.drivers import Schedulers

    with suppress(UserError):
        progress = advance(sweep, Schedulers().of(sweep.run), index)
        if progress is not None and progress.job_ids:
            left = f"; {progress.left} points are left" if progress.left else ""
            click.echo(visible(f"{sweep.name}: submitted job {', '.join(progress.job_ids)}{left}"), err=True)
