"""`status`, `list` and `watch`: the states of runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hpc_launch.api.run_calls import find
from hpc_launch.api.run_calls import runs as list_runs
from hpc_launch.cli.follow import follow
from hpc_launch.cli.shared_options import complete_run, complete_site, echo_answer, echo_json, json_option, seconds
from hpc_launch.cli.terminal import TERMINAL, print_note
from hpc_launch.performance.efficiency import run_efficiency
from hpc_launch.performance.run_times import run_times
from hpc_launch.runs.groups.pipeline_status import PipelineStatus
from hpc_launch.runs.groups.sweep_status import SweepStatus
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import user_index
from hpc_launch.runs.status.run_status import RUN_STATES, RunStatus
from hpc_launch.service.poll import poll_runs
from hpc_launch.view.format_values import aligned, clean
from hpc_launch.view.run_details import details
from hpc_launch.view.run_table import efficiency_lines, goodput_lines, pipeline_lines, show, sweep_lines
from hpc_launch.view.state_text import time_json
from hpc_launch.view.terminal import wants_colour, write_lines

if TYPE_CHECKING:
    from hpc_launch.remote.forward import RunsThere

NONE_ACTIVE = "no active runs; run `hpc-launch list` to see all runs"
LEASES_S = 10.0
"""For how long the hosts of a run are asked for their leases."""


@click.command("status")
@click.argument("run", required=False, metavar="[RUN]", shell_complete=complete_run)
@json_option
def status_command(run: str | None, as_json: bool) -> None:
    """Show the state of a run, with its source and age. Without RUN, show all active runs.

    RUN is a run's name or a prefix of it, a job id, a run folder, or @last. SWEEP shows all points, SWEEP/7 or
    SWEEP/lr=3e-4 one of them; PIPELINE shows all stages, PIPELINE/train one of them.

    \b
    hpc-launch status
    hpc-launch status @last
    hpc-launch status 12345 --json
    """
    if run is None:
        statuses = [one.last for one in list_runs(state="active", listener=TERMINAL) if one.last is not None]
        if as_json:
            echo_json([status.as_json() for status in statuses])
        elif statuses:
            show(statuses)
        else:
            print_note(NONE_ACTIVE)
        return
    status = find(run, listener=TERMINAL).whole()
    if isinstance(status, SweepStatus | PipelineStatus):
        lines = sweep_lines(status) if isinstance(status, SweepStatus) else pipeline_lines(status)
        echo_answer(status.as_json(), lines, as_json=as_json)
        return
    account = run_times(status, time.time()).account
    if as_json:
        echo_json({**status.as_json(), **time_json(account)})
        return
    hosts, use = _leases(status), run_efficiency(status)
    write_lines(details(status, account=account, use=use, hosts_of_run=hosts, colour=wants_colour(sys.stdout)))


def _leases(status: RunStatus) -> list[str]:
    """The hosts of an active run without a scheduler by their state for it: who holds them."""
    if not status.hosts:
        return []
    from hpc_launch.job.hostlist import compress
    from hpc_launch.schedulers.ssh.ssh_hosts import holders_of, leases_of

    with TERMINAL.doing("querying the hosts"):
        states = holders_of(status.run, leases_of(status.hosts, LEASES_S))
    return [f"{compress(hosts)}: {words}" for words, hosts in states.items()]


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
@click.option("--site", "where", metavar="NAME", shell_complete=complete_site, help="List only runs on this site.")
@click.option(
    "--since", "age_s", callback=seconds, metavar="TIME", help="List only runs submitted within this time, such as 2d."
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
    "table",
    flag_value="goodput",
    help="Show where the time of each run went: the share of productive training, and where the remaining time went.",
)
@click.option("--efficiency", "table", flag_value="efficiency", help="Show what runs of the last month used.")
@json_option
def list_command(
    states: tuple[str, ...], where: str | None, age_s: int | None, most: int | None, table: str | None, as_json: bool
) -> None:
    """List your runs, newest first, with state, progress and time left.

    \b
    hpc-launch list
    hpc-launch list --state failed --since 2d --site mycluster
    hpc-launch list --goodput
    hpc-launch list --json
    """
    from hpc_launch.remote.clusters import names

    index = user_index()
    limit = most if most is not None or as_json or table == "efficiency" else DEFAULT_LIMIT
    after = time.time() - age_s if age_s is not None else "30d" if table == "efficiency" else None
    found = list_runs(state=states, since=after, site=where, limit=limit, listener=TERMINAL)
    shown = [run.last for run in found if run.last is not None]
    if table is not None:  # the index has the last attempt only
        shown = poll_runs([RunFolder(status.folder) for status in shown], index, TERMINAL, drive=False)
    accounts = [run_times(status, time.time()).account for status in shown] if table == "goodput" else []
    uses = [run_efficiency(status) for status in shown] if table == "efficiency" else []
    elsewhere: list[RunsThere] = []
    if names():
        from hpc_launch.remote.forward import list_all

        words = click.get_current_context().find_root().obj
        elsewhere = list_all([one for one in words if one not in ("list", "--json")])  # by the same options
    if as_json:
        more = [*map(time_json, accounts), *({"efficiency": use.as_json()} for use in uses)] or [{} for _ in shown]
        here = [status.as_json(attempts=False) | fields for status, fields in zip(shown, more, strict=True)]
        there = [
            {**run, "cluster": one.cluster, "as_of": one.answer.as_of, "problem": one.problem}
            for one in elsewhere
            for run in one.answer.runs
        ]
        echo_json([*here, *there])
        return
    if elsewhere and table != "efficiency":
        _show_elsewhere(elsewhere, shown)
        return
    if not shown:
        nothing = "no runs yet; start one with `hpc-launch submit JOB.yaml`"
        print_note("no run is like that" if index.count() else nothing)
        return
    if table is not None:
        write_lines(goodput_lines(shown, accounts) if table == "goodput" else efficiency_lines(shown, uses))
    else:
        show(shown)
    omitted = index.count() - len(shown)
    if omitted and most is None and not (states or where or age_s is not None):
        print_note(f"{omitted} older runs not shown; use -n {len(shown) + omitted} to see all")


def _show_elsewhere(elsewhere: Sequence[RunsThere], here: list[RunStatus]) -> None:
    """The runs of this machine, and those of each cluster with the time of its answer."""
    if here:
        show(here)
    keys = ("run", "state", "site", "reason")
    for one in elsewhere:
        when = time.strftime("%F %T", time.localtime(one.answer.as_of)) if one.answer.as_of else "never"
        problem = f"; it does not answer now: {clean(one.problem)}" if one.problem else ""
        click.echo(f"{one.cluster}, as of {when}{problem}")
        rows = [tuple(str(run.get(key) or "") for key in keys) for run in one.answer.runs]
        write_lines([f"  {line}" for line in aligned([[key.upper() for key in keys], *rows], empty=False)])


@click.command("watch")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@json_option
def watch_command(runs: tuple[str, ...], as_json: bool) -> int:
    """Follow runs live to their end; without RUN, all active runs. Ctrl-C stops watching; the jobs keep running.

    With --json, print how they ended.

    Exits with 0 if all runs completed, 1 if one failed, was cancelled or can never start.

    \b
    hpc-launch watch
    hpc-launch watch @last
    """
    if runs:
        return follow(list(dict.fromkeys(find(run, listener=TERMINAL) for run in runs)), as_json=as_json)
    active = list_runs(state="active", listener=TERMINAL)
    if not active:
        if as_json:
            echo_json([])
        print_note(NONE_ACTIVE)
        return 0
    return follow(active, as_json=as_json)
