"""`sites`: the profiles of clusters. Each command of the group is a module of its own, imported when it is called."""

from __future__ import annotations

import importlib

import click

from hpc_launch.cli.lazy_group import LazyGroup

COMMANDS = {
    "list": "the profiles on the search path",
    "show": "a profile with all it extends, each value with its origin",
    "diff": "what differs between two profiles, or two revisions of a team's",
    "detect": "which site this machine is of, and why",
    "learn": "a profile of the cluster whose login node this is",
    "check": "look through profiles, for a team's CI; with --live hold one against its cluster",
    "add": "take a team's profiles, at one revision of their repository",
    "update": "move a team's profiles to another revision",
    "remove": "give a team's profiles up",
}
"""The commands by name; the module of `NAME` is `hpc_launch.cli.sites_NAME`, and its command is called `command`."""


def _load(name: str) -> click.Command:
    found: click.Command = importlib.import_module(f"hpc_launch.cli.sites_{name}").command
    return found


@click.group("sites", cls=LazyGroup, about=COMMANDS, load=_load)
def command() -> None:
    """Show, compare, check and share the profiles of clusters.

    \b
    hpc-launch sites list
    hpc-launch sites show lumi-g queues
    """
