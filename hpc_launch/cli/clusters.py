"""`clusters`: set up the clusters that verbs reach with `--on`, and show them."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import LazyGroup, echo_json, json_option, site_option
from hpc_launch.cli.terminal import TERMINAL, print_note


@click.group("clusters", cls=LazyGroup)
def command() -> None:
    """Use clusters from a machine without Slurm: `hpc-launch submit job.yaml --on NAME`.

    \b
    hpc-launch clusters add lumi --host me@lumi.csc.fi --site lumi-g
    hpc-launch clusters list
    """


@command.command("add", short_help="check the login to a cluster, and install this hpc-launch there")
@click.argument("name")
@click.option("--host", metavar="HOST", help="The login node, as ssh knows it. Default: NAME.")
@site_option
@json_option
def add(name: str, host: str | None, site: str | None, as_json: bool) -> None:
    """Check the login to a cluster, create a virtual environment there, and install this hpc-launch in it.

    A password or a second factor is asked for once, and the connection stays open for 12 hours. The packages are copied
    from this machine, since many login nodes reach no package index.

    \b
    hpc-launch clusters add lumi --host me@lumi.csc.fi --site lumi-g
    """
    from hpc_launch.remote.install import add as set_up

    cluster = set_up(name, TERMINAL, host=host, site=site)
    if as_json:
        from msgspec import to_builtins

        echo_json(to_builtins(cluster) | {"connected": True})
        return
    click.echo(f"{cluster.name}: hpc-launch {cluster.version} on {cluster.host}")
    print_note(f"submit there with: hpc-launch submit job.yaml --on {cluster.name}")


@command.command("list", short_help="list the clusters with their state and version")
@json_option
def list_(as_json: bool) -> None:
    """List the clusters, whether each is connected now, and its version.

    \b
    hpc-launch clusters list
    """
    import subprocess

    from msgspec import to_builtins

    from hpc_launch.remote import clusters
    from hpc_launch.view.format_values import aligned

    found = []
    for cluster in map(clusters.find, clusters.names()):
        check = [*clusters.connection(ask=False), "-O", "check", "--", cluster.host]
        connected = subprocess.run(check, capture_output=True, check=False).returncode == 0
        found.append({**to_builtins(cluster), "connected": connected})
    if as_json:
        echo_json(found)
        return
    if not found:
        print_note("no cluster is set up; hpc-launch clusters add NAME does it")
    rows = [
        (one["name"], one["host"], "connected" if one["connected"] else "not connected", one["version"])
        for one in found
    ]
    for line in aligned(rows):
        click.echo(line)
