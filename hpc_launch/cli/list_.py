"""`list`: list all runs, newest first, including finished ones."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from hpc_launch.cli.shared_options import echo_json_list, json_option
from hpc_launch.cli.terminal import TERMINAL
from hpc_launch.runs.status.run_status import RUN_STATES

if TYPE_CHECKING:
    from hpc_launch.performance.time_account import TimeAccount
    from hpc_launch.runs.run_index import Index, IndexEntry
    from hpc_launch.runs.status.run_status import FinalStatus, RunStatus

    Listed = tuple[IndexEntry, RunStatus | FinalStatus]

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
    type=click.IntRange(min=1, max=10**9),
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
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.runs.status.run_status import FinalStatus

    index = user_index(os.environ)
    limit = most if most is not None or as_json else DEFAULT_LIMIT
    polled = _poll(index, states, limit)
    chosen = islice(merge(polled, index.finished(states, limit), key=_order, reverse=True), limit)
    if as_json:
        echo_json_list(_as_json((status for _, status in chosen), goodput=goodput))
        return
    now = time.time()
    shown = [status.status(now) if isinstance(status, FinalStatus) else status for _, status in chosen]
    if not shown:
        nothing = "no runs yet; start one with `hpc-launch submit JOB.yaml`"
        click.echo("no run is in this state" if index.count() else nothing, err=True)
        return
    if goodput:
        from hpc_launch.view.time_text import show_goodput

        show_goodput(shown, _accounts(shown))
    else:
        from hpc_launch.view.run_table import show

        show(shown)
    omitted = (len(polled) + index.count(states) if states else index.count()) - len(shown)
    if omitted and most is None:
        click.echo(f"{omitted} older runs not shown; use -n {len(shown) + omitted} to see all", err=True)


def _poll(index: Index, states: tuple[str, ...], limit: int | None) -> list[Listed]:
    """The runs that are listed and whose final status the index does not have, newest first."""
    from hpc_launch.service.poll import poll_unfinished

    if limit is not None:
        index.check(states, limit)
    # Without --state, only the runs that are shown need a query.
    polled = poll_unfinished(index, TERMINAL, None if states else limit)
    return [(entry, status) for entry, status in polled if not states or status.state in states]


def _order(listed: Listed) -> tuple[float, str]:
    return listed[0].created, listed[0].run


def _as_json(statuses: Iterable[RunStatus | FinalStatus], *, goodput: bool) -> Iterator[dict[str, Any]]:
    from hpc_launch.runs.status.run_status import FinalStatus

    now = time.time()
    for status in statuses:
        shown = status.as_json(now) if isinstance(status, FinalStatus) else status.as_json(attempts=False)
        if goodput:
            from hpc_launch.view.time_text import time_json

            whole = status.status(now) if isinstance(status, FinalStatus) else status
            shown |= time_json(*_accounts([whole]))
        yield shown


def _accounts(statuses: list[RunStatus]) -> list[TimeAccount]:
    """Where the time of each run went, by the files of all its attempts."""
    from hpc_launch.performance.run_times import run_times
    from hpc_launch.runs.layout import RunFolder
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.service.poll import poll_runs

    polled = poll_runs([RunFolder(status.folder) for status in statuses], user_index(os.environ), TERMINAL, drive=False)
    return [run_times(status, time.time()).account for status in polled]
