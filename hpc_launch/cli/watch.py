"""`watch`: follow runs live to their end."""

from __future__ import annotations

import os

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.terminal import TERMINAL


@click.command("watch")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
def command(runs: tuple[str, ...]) -> int:
    """Follow runs live to their end; without RUN, all active runs. Ctrl-C stops watching; the jobs keep running.

    Exits with 0 if all runs completed, 1 if one failed, was cancelled or can never start.

    \b
    hpc-launch watch
    hpc-launch watch @last
    """
    from hpc_launch.cli.follow import follow
    from hpc_launch.runs.find_run import find_run
    from hpc_launch.runs.layout import RunFolder
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.service.poll import active_runs

    index = user_index(os.environ)
    if runs:
        folders = {folder.path: folder for folder in (find_run(run, index, sweeps=True) for run in runs)}
        return follow(list(folders.values()))
    active = [RunFolder(status.folder) for status in active_runs(index, TERMINAL)]
    if not active:
        click.echo("no active runs; run `hpc-launch list` to see all runs", err=True)
        return 0
    return follow(active)
