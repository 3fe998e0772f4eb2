"""`nodes`: show and clear the nodes that runs recorded as bad, and show who uses hosts without a scheduler."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from msgspec import to_builtins

from hpc_launch.base.errors import UsageError
from hpc_launch.cli.shared_options import LazyGroup, echo_answer, json_option, site_option
from hpc_launch.cli.terminal import TERMINAL, print_note
from hpc_launch.diagnose.node_health import BadNode
from hpc_launch.job.hostlist import expand
from hpc_launch.job.units import counted
from hpc_launch.prepare.prepare import detect_site
from hpc_launch.runs.node_health_store import NodeHealthStore, cannot_write
from hpc_launch.site_tools.site_nodes import SiteHost, node_health_store, site_leases
from hpc_launch.view.format_values import ago, aligned, clean, clock_time, duration

NONE_BAD = "no node is recorded as bad"


@click.group("nodes", cls=LazyGroup)
def command() -> None:
    """Show and clear the bad nodes that runs on this site have recorded and that new jobs exclude. Without Slurm, also
    show who uses which host.

    \b
    hpc-launch nodes list --site mycluster
    hpc-launch nodes ticket --site mycluster > support-request.txt
    hpc-launch nodes clear n3 --site mycluster
    hpc-launch nodes leases --site lab
    """


@command.command("list", short_help="list the nodes currently recorded as bad, worst first")
@site_option
@json_option
def list_command(site: str | None, as_json: bool) -> None:
    """List the nodes currently recorded as bad, worst first. Records expire.

    \b
    hpc-launch nodes list --site mycluster
    """
    store = _store(site)
    standing = store.standing()
    found = [{**to_builtins(one), "count": one.count} for one in standing]
    note = "" if standing else NONE_BAD
    echo_answer(found, _table(standing) if standing else [], note, as_json=as_json)


@command.command(
    "ticket", short_help="write a ticket for the site's support: which nodes failed, when, with what evidence"
)
@site_option
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
def ticket_command(site: str | None, nodes: tuple[str, ...]) -> None:
    """Write a ticket for the site's support: which nodes failed, when, in which jobs, with what evidence.

    \b
    hpc-launch nodes ticket n3
    """
    store = _store(site)
    chosen = [one for one in store.standing() if not nodes or one.node in nodes]
    if chosen:
        click.echo("\n".join(_support_report(chosen)))
    else:
        print_note(NONE_BAD)


@command.command("clear", short_help="mark nodes as healthy again")
@site_option
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@json_option
def clear_command(site: str | None, nodes: tuple[str, ...], as_json: bool) -> None:
    """Mark nodes as healthy again. Host lists such as n[3-5] are accepted.

    \b
    hpc-launch nodes clear n3
    """
    names: list[str] = []
    for text in nodes:
        try:
            names += expand(text)
        except ValueError as error:
            raise UsageError(f"{text}: {error}", "write nodes as n3 or n[3-5]") from error
    store = _store(site)
    known = {one.node for one in store.standing()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"not recorded as bad: {', '.join(unknown)}", "run `hpc-launch nodes list` to see which are")
    try:
        store.clear(names)
    except OSError as error:
        raise UsageError(cannot_write(store.folder, error)) from error
    echo_answer(names, [f"cleared: {', '.join(names)}"], as_json=as_json)


@command.command("leases", short_help="show who uses the hosts of a site without Slurm")
@site_option
@json_option
def leases_command(site: str | None, as_json: bool) -> None:
    """Show who uses the hosts of a site with `scheduler: ssh`: user, run and time of each lease.

    All hosts are asked at the same time, for at most 20 s.

    \b
    hpc-launch nodes leases --site lab
    """
    with TERMINAL.doing("querying the hosts"):
        hosts = site_leases(_site_name(site))
    echo_answer([one.as_json() for one in hosts], lease_table(hosts), as_json=as_json)


def lease_table(hosts: Sequence[SiteHost]) -> Iterator[str]:
    """The hosts of a site: who uses each, and since when."""
    now = time.time()
    rows: list[tuple[str, ...]] = [("HOST", "SLOTS", "STATE", "USER", "RUN", "JOB", "SINCE")]
    for host in hosts:
        start, state = (host.name, str(host.slots)), host.leases.state
        holders = [
            (state, one.user, one.run, one.job_id, clock_time(one.since, now)) for one in host.leases.holders
        ] or [(state, "", "", "", "")]
        rows += [(*(start if at == 0 else ("", "")), *holder) for at, holder in enumerate(holders)]
    yield from aligned(rows)
    yield from (f"{clean(host.name)}: {clean(host.leases.fault)}" for host in hosts if host.leases.fault is not None)


def _store(site: str | None) -> NodeHealthStore:
    """Open the node health store of the named site, of $HPC_LAUNCH_SITE, or of this machine's. Names its problems."""
    store = node_health_store(_site_name(site))
    for problem in store.problems():
        print_note(f"warning: {problem}")
    return store


def _site_name(site: str | None) -> str:
    """The named site, $HPC_LAUNCH_SITE, or this machine's."""
    name = site or os.environ.get("HPC_LAUNCH_SITE")
    if not name:
        match = detect_site(Path.cwd()).required()
        print_note(f"site {match.name}: {match.reason}")
        name = match.name
    return name


def _table(nodes: Sequence[BadNode]) -> list[str]:
    """One line per node."""
    now = time.time()
    rows = [("NODE", "FAILURES", "LAST", "CLASS", "EXCLUDED FOR")]
    for one in nodes:
        last = one.notes[-1]
        excluded = (
            duration(one.expires - now) if one.avoided else "not excluded: this class needs more than one failure"
        )
        rows.append((one.node, str(one.count), ago(now - last.time), last.failure_class, excluded))
    return aligned(rows)


def _support_report(nodes: Sequence[BadNode]) -> list[str]:
    """What a site's support needs to investigate the nodes: times, jobs and log lines."""
    lines = ["Our jobs failed on the nodes below. Could you please check them?", ""]
    for one in nodes:
        lines += [f"{clean(one.node)}: {counted(one.count, 'job')}"]
        for note in one.notes:
            when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(note.time))
            job = f"job {clean(note.job_id)}" if note.job_id else "a job"
            cause = f" ({clean(note.cause)})" if note.cause else ""
            lines.append(f"  {when}  {job} of {clean(note.by)}: {clean(note.failure_class)}{cause}")
            lines += [f"    {clean(quote.text)}" for quote in note.evidence]
        lines.append("")
    return lines[:-1]
