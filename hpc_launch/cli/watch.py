"""`watch`: follow runs live, to their end."""

from __future__ import annotations

import os

import click

from hpc_launch.cli.completion import complete_run


@click.command("watch")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
def command(runs: tuple[str, ...]) -> int:
    """Follow runs to their end; without RUN, all that are under way. Ctrl-C stops watching, and the jobs go on.

    Exit code 0 if all completed, 1 if one ended otherwise or can never start.

    \b
    hpc-launch watch
    hpc-launch watch @last
    """
    from hpc_launch.cli.follow import follow, live
    from hpc_launch.run.find_run import find_run
    from hpc_launch.run.layout import RunFolder
    from hpc_launch.run.run_index import user_index

    index = user_index(os.environ)
    if runs:
        found = {folder.path: folder for folder in (find_run(run, index) for run in runs)}
        return follow(list(found.values()))
    under_way = [RunFolder(status.folder) for status in live(index)]
    if not under_way:
        click.echo("no run is under way; hpc-launch list shows all", err=True)
        return 0
    return follow(under_way)
