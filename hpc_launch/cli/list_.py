"""`list`: all runs, newest first; those that ended stay listed."""

from __future__ import annotations

import os

import click

from hpc_launch.cli.shared_options import echo_json, json_option
from hpc_launch.run.status.run_status import RUN_STATES

SHOWN = 50
"""How many runs a person gets to see who asked for no number."""


@click.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(RUN_STATES, case_sensitive=False),
    metavar="STATE",
    help=f"Only runs in this state. May be repeated. One of {', '.join(word.lower() for word in RUN_STATES)}.",
)
@click.option(
    "-n", "most", type=click.IntRange(min=1), metavar="N", help=f"The newest N (by default {SHOWN}; --json: all)."
)
@json_option
def command(states: tuple[str, ...], most: int | None, as_json: bool) -> None:
    """List your runs, newest first, with state, progress and time left.

    \b
    hpc-launch list
    hpc-launch list --state failed -n 5
    hpc-launch list --json
    """
    from hpc_launch.cli.follow import look
    from hpc_launch.run.layout import RunFolder
    from hpc_launch.run.run_index import user_index

    index = user_index(os.environ)
    entries = index.entries()
    limit = most if most is not None or as_json else SHOWN
    # Without a wish for states, only what is shown has to be looked at.
    looked_at = entries if states or limit is None else entries[:limit]
    statuses = look([RunFolder(entry.folder) for entry in looked_at], index, entries)
    wanted = [status for status in statuses if not states or status.state in states]
    chosen = wanted if limit is None else wanted[:limit]
    if as_json:
        echo_json([status.as_json(attempts=False) for status in chosen])
        return
    if not chosen:
        hint = "no run is in such a state" if entries else "there is no run yet; hpc-launch submit JOB.yaml starts one"
        click.echo(hint, err=True)
        return
    from hpc_launch.view.run_table import show

    show(chosen)
    left_out = (len(wanted) if states else len(entries)) - len(chosen)
    if left_out and most is None:
        click.echo(f"{left_out} older ones are not shown: -n {len(chosen) + left_out} shows all", err=True)
