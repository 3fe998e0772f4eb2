"""`clusters`: set up the clusters that verbs reach with `--on`, and show them."""

from __future__ import annotations

import click
from msgspec import to_builtins

from hpc_launch.cli.shared_options import LazyGroup, echo_answer, json_option, site_option
from hpc_launch.cli.terminal import TERMINAL


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
    line = f"{cluster.name}: hpc-launch {cluster.version} on {cluster.host}"
    note = f"submit there with: hpc-launch submit job.yaml --on {cluster.name}"
    echo_answer(to_builtins(cluster) | {"connected": True}, [line], note, as_json=as_json)


@command.command("list", short_help="list the clusters with their state and version")
@json_option
def list_(as_json: bool) -> None:
    """List the clusters, whether each is connected now, and its version.

    \b
    hpc-launch clusters list
    """
    import subprocess

    from hpc_launch.remote import clusters
    from hpc_launch.view.format_values import aligned

    found = []
    for cluster in map(clusters.find, clusters.names()):
        check = [*clusters.connection(ask=False), "-O", "check", "--", cluster.host]
        connected = subprocess.run(check, capture_output=True, check=False).returncode == 0
        found.append({**to_builtins(cluster), "connected": connected})
    rows = [
        (one["name"], one["host"], "connected" if one["connected"] else "not connected", one["version"])
        for one in found
    ]
    note = "" if found else "no cluster is set up; hpc-launch clusters add NAME does it"
    echo_answer(found, aligned(rows), note, as_json=as_json)
