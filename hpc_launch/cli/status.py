"""`status`: how a run stands, or all that are not over."""

from __future__ import annotations

import os
import sys

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.shared_options import echo_json, json_option


@click.command("status")
@click.argument("run", required=False, metavar="[RUN]", shell_complete=complete_run)
@json_option
def command(run: str | None, as_json: bool) -> None:
    """Show the state of a run with its source and age; without RUN, of every run that is not over.

    A RUN is a name or its beginning, a job id, a run's folder, or @last.

    \b
    hpc-launch status
    hpc-launch status @last
    hpc-launch status 12345 --json
    """
    from hpc_launch.cli.follow import live, look
    from hpc_launch.run.find_run import find_run
    from hpc_launch.run.run_index import user_index

    index = user_index(os.environ)
    if run is None:
        statuses = live(index)
        if as_json:
            echo_json([status.as_json() for status in statuses])
        elif statuses:
            from hpc_launch.view.run_table import show

            show(statuses)
        else:
            click.echo("no run is under way; hpc-launch list shows all", err=True)
        return
    (status,) = look([find_run(run, index)], index)
    if as_json:
        echo_json(status.as_json())
        return
    from hpc_launch.view.run_details import full
    from hpc_launch.view.terminal import wants_colour, write_lines

    write_lines(full(status, colour=wants_colour(sys.stdout)))
