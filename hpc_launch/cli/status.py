"""`status`: show the state of one run, or of all active runs."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from hpc_launch.cli.completion import complete_run
from hpc_launch.cli.shared_options import echo_json, json_option
from hpc_launch.cli.terminal import TERMINAL

if TYPE_CHECKING:
    from hpc_launch.runs.status.run_status import RunStatus

LEASES_S = 10.0
"""For how long the hosts of a run are asked for their leases."""


@click.command("status")
@click.argument("run", required=False, metavar="[RUN]", shell_complete=complete_run)
@json_option
def command(run: str | None, as_json: bool) -> None:
    """Show the state of a run, with its source and age. Without RUN, show all active runs.

    RUN is a run's name or a prefix of it, a job id, a run folder, or @last. SWEEP shows all points, SWEEP/7 or
    SWEEP/lr=3e-4 one of them; PIPELINE shows all stages, PIPELINE/train one of them.

    \b
    hpc-launch status
    hpc-launch status @last
    hpc-launch status 12345 --json
    """
    from hpc_launch.runs.find_run import find_run
    from hpc_launch.runs.pipelines.pipeline_status import PipelineStatus
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.runs.sweeps.sweep_status import SweepStatus
    from hpc_launch.service.poll import active_runs, poll_whole
    from hpc_launch.view.terminal import wants_colour, write_lines

    index = user_index(os.environ)
    if run is None:
        statuses = active_runs(index, TERMINAL)
        if as_json:
            echo_json([status.as_json() for status in statuses])
        elif statuses:
            from hpc_launch.view.run_table import show

            show(statuses)
        else:
            click.echo("no active runs; run `hpc-launch list` to see all runs", err=True)
        return
    status = poll_whole(find_run(run, index, sweeps=True), index, TERMINAL)
    if isinstance(status, SweepStatus | PipelineStatus):
        if as_json:
            echo_json(status.as_json())
            return
        from hpc_launch.view.group_tables import pipeline_lines, sweep_lines

        write_lines(sweep_lines(status) if isinstance(status, SweepStatus) else pipeline_lines(status), sys.stdout)
        return
    from hpc_launch.performance.run_times import run_times

    account = run_times(status, time.time()).account
    if as_json:
        from hpc_launch.view.time_text import time_json

        echo_json({**status.as_json(), **time_json(account)})
        return
    from hpc_launch.view.run_details import details

    hosts = _leases(status)
    write_lines(details(status, account=account, hosts_of_run=hosts, colour=wants_colour(sys.stdout)))


def _leases(status: RunStatus) -> list[str]:
    """Who holds the hosts of an active run without a scheduler."""
    if not status.hosts:
        return []
    from hpc_launch.schedulers.ssh.leases import holders_of, leases_of
    from hpc_launch.view.site_tables import lease_lines

    with TERMINAL.doing("querying the hosts"):
        return lease_lines(holders_of(status.run, leases_of(status.hosts, LEASES_S)))
