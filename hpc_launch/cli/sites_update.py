"""`sites update`: move a team's profiles to another revision."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import complete_team


@click.command("update")
@click.argument("name", shell_complete=complete_team)
@click.option("--revision", metavar="REV", help="The revision to take; by default the same as before.")
@click.option("--trust", "trusted", metavar="REV", help="Let raw shell lines of that revision count: read them first.")
def command(name: str, revision: str | None, trusted: str | None) -> None:
    """Take a team's profiles at another revision, over the shipped bases of this version of hpc-launch. `sites diff`
    shows beforehand what will change.

    \b
    hpc-launch sites diff team --revision v4
    hpc-launch sites update team --revision v4
    """
    from hpc_launch.cli.sites_add import say
    from hpc_launch.site_tools.team_sources import update

    say(update(name, revision, trusted))
