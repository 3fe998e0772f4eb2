"""`sites`: the profiles of clusters. Each command of the group is a module of its own, imported when it is called."""

from __future__ import annotations

import importlib

import click

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


class Group(click.Group):
    """The commands by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"hpc_launch.cli.sites_{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group("sites", cls=Group)
def command() -> None:
    """Show, compare, check and share the profiles of clusters.

    \b
    hpc-launch sites list
    hpc-launch sites show lumi-g queues
    """
