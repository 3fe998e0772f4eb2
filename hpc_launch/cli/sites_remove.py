"""`sites remove`: give a team's profiles up."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import complete_team


@click.command("remove")
@click.argument("name", shell_complete=complete_team)
def command(name: str) -> None:
    """Take what `sites add` added from the search path. Runs keep their own copy of the profile they were made with.

    \b
    hpc-launch sites remove team
    """
    from hpc_launch.site_tools.team_sources import remove

    team = remove(name)
    click.echo(f"{team.name} is gone; it was {team.url}", err=True)
