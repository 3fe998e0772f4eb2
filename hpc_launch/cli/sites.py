"""`sites`: show, compare, check and share site profiles. Each command is a module, imported when called."""

from __future__ import annotations

import importlib

import click

from hpc_launch.cli.lazy_group import LazyGroup

COMMANDS = {
    "list": "list the profiles on the search path",
    "show": "show a resolved profile, with the origin of each value",
    "diff": "compare two profiles, or two revisions of a team's profiles",
    "detect": "detect the site of this machine, and say why",
    "learn": "draft a profile of this cluster",
    "check": "check profiles, e.g. in CI; --live compares one with its cluster",
    "add": "add a team's profiles, pinned to a revision of their repository",
    "update": "update a team's profiles to another revision",
    "remove": "remove a team's profiles",
}
"""Commands by name; `NAME` is `hpc_launch.cli.sites_NAME.command`."""


def _load(name: str) -> click.Command:
    loaded: click.Command = importlib.import_module(f"hpc_launch.cli.sites_{name}").command
    return loaded


@click.group("sites", cls=LazyGroup, about=COMMANDS, load=_load)
def command() -> None:
    """Show, compare, check and share site profiles.

    \b
    hpc-launch sites list
    hpc-launch sites show lumi-g queues
    """
