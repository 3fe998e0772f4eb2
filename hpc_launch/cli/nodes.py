"""`nodes`: the ledger of nodes that runs found to be bad."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from hpc_launch.cli.lazy_group import LazyGroup
from hpc_launch.cli.shared_options import echo_json, json_option, site_option

if TYPE_CHECKING:
    from hpc_launch.recover.node_health import BadNode
    from hpc_launch.run.node_health_store import NodeHealthStore


COMMANDS = {
    "list": "the nodes with notes that have not expired, the worst first",
    "report": "a text for the site's support: which nodes failed, when, by what evidence",
    "clear": "note that nodes are well again",
}
"""The commands by name; the function of `NAME` is `NAME_command`."""


@click.group("nodes", cls=LazyGroup, about=COMMANDS, load=lambda name: globals()[f"{name}_command"])
def command() -> None:
    """Show and clear the ledger: nodes that runs of this site's team found to be bad, and that new jobs keep off.

    \b
    hpc-launch nodes list --site mycluster
    hpc-launch nodes report --site mycluster > to-the-support.txt
    hpc-launch nodes clear n3 --site mycluster
    """


@click.command("list")
@site_option
@json_option
def list_command(site: str | None, as_json: bool) -> None:
    """List the nodes with notes that have not expired, the worst first.

    \b
    hpc-launch nodes list --site mycluster
    """
    standing = _ledger(site).standing()
    if as_json:
        echo_json([_as_json(one) for one in standing])
        return
    if not standing:
        click.echo("no node is noted as bad", err=True)
        return
    from hpc_launch.view.node_health_table import table

    click.echo("\n".join(table(standing)))


@click.command("report")
@site_option
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
def report_command(site: str | None, nodes: tuple[str, ...]) -> int:
    """Write a text for the site's support: which nodes failed, when, in which jobs, by what evidence.

    \b
    hpc-launch nodes report n3
    """
    from hpc_launch.view.node_health_table import report

    ledger = _ledger(site)
    chosen = [one for one in ledger.standing() if not nodes or one.node in nodes]
    if not chosen:
        click.echo("no node is noted as bad", err=True)
        return 0
    click.echo("\n".join(report(chosen)))
    return 0


@click.command("clear")
@site_option
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
def clear_command(site: str | None, nodes: tuple[str, ...]) -> int:
    """Note that nodes are well again; host lists such as n[3-5] go too.

    \b
    hpc-launch nodes clear n3
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.spec.hostlist import expand

    names: list[str] = []
    for text in nodes:
        try:
            names += expand(text)
        except ValueError as error:
            raise UsageError(f"{text}: {error}", "write nodes as n3 or n[3-5]") from error
    ledger = _ledger(site)
    known = {one.node for one in ledger.standing()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"not noted as bad: {', '.join(unknown)}", "hpc-launch nodes list shows those that are")
    try:
        ledger.clear(names)
    except OSError as error:
        raise UsageError(f"cannot write {ledger.folder}: {error.strerror}", "it has to be writable for you") from error
    click.echo(f"cleared: {', '.join(names)}")
    return 0


def _ledger(site: str | None) -> NodeHealthStore:
    """The ledger of the site that is asked for, or of $HPC_LAUNCH_SITE."""
    from hpc_launch.base.errors import UsageError
    from hpc_launch.site_tools.node_health_lookup import ledger_of

    name = site or os.environ.get("HPC_LAUNCH_SITE")
    if not name:
        raise UsageError("no site is named", "use `--site NAME`, or set HPC_LAUNCH_SITE")
    return ledger_of(name)


def _as_json(one: BadNode) -> dict[str, object]:
    from msgspec import to_builtins

    return {
        "node": one.node,
        "count": one.count,
        "avoided": one.avoided,
        "expires": one.expires,
        "notes": [to_builtins(note) for note in one.notes],
    }
