"""`list`: list all runs, newest first, including finished ones."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from hpc_launch.cli.shared_options import echo_json, json_option
from hpc_launch.run.status.run_status import RUN_STATES

if TYPE_CHECKING:
    from hpc_launch.performance.time_account import TimeAccount
    from hpc_launch.run.status.run_status import RunStatus

DEFAULT_LIMIT = 50
"""Runs listed without -n."""


@click.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(RUN_STATES, case_sensitive=False),
    metavar="STATE",
    help=f"List only runs in this state ({', '.join(state.lower() for state in RUN_STATES)}). Repeatable.",
)
@click.option(
    "-n",
    "most",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"List the newest N runs (default {DEFAULT_LIMIT}; all with --json).",
)
@click.option(
    "--goodput",
    is_flag=True,
    help="Show where the time of each run went: the share of productive training, and what took the rest.",
)
@json_option
def command(states: tuple[str, ...], most: int | None, goodput: bool, as_json: bool) -> None:
    """List your runs, newest first, with state, progress and time left.

    \b
    hpc-launch list
    hpc-launch list --state failed -n 5
    hpc-launch list --goodput
    hpc-launch list --json
    """
    from hpc_launch.cli.follow import poll_runs
    from hpc_launch.run.layout import RunFolder
    from hpc_launch.run.run_index import user_index

    index = user_index(os.environ)
    entries = index.entries()
    limit = most if most is not None or as_json else DEFAULT_LIMIT
    # Without --state, only the runs that are shown need a query.
    queried = entries if states or limit is None else entries[:limit]
    statuses = poll_runs([RunFolder(entry.folder) for entry in queried], index, entries)
    matching = [status for status in statuses if not states or status.state in states]
    chosen = matching if limit is None else matching[:limit]
    accounts = _accounts(chosen) if goodput else []
    if as_json:
        from hpc_launch.view.time_text import time_json

        times = [time_json(account) for account in accounts] or [{}] * len(chosen)
        echo_json([{**status.as_json(attempts=False), **spent} for status, spent in zip(chosen, times, strict=True)])
        return
    if not chosen:
        nothing = "no run is in this state" if entries else "no runs yet; start one with `hpc-launch submit JOB.yaml`"
        click.echo(nothing, err=True)
        return
    if goodput:
        from hpc_launch.view.goodput_table import show_goodput

        show_goodput(chosen, accounts)
    else:
        from hpc_launch.view.run_table import show

        show(chosen)
    omitted = (len(matching) if states else len(entries)) - len(chosen)
    if omitted and most is None:
        click.echo(f"{omitted} older runs not shown; use -n {len(chosen) + omitted} to see all", err=True)


def _accounts(statuses: list[RunStatus]) -> list[TimeAccount]:
    """Where the time of each run went."""
    from hpc_launch.performance.run_times import run_times

    return [run_times(status, time.time()).account for status in statuses]
