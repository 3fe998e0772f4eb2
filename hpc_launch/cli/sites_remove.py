"""`sites remove`: remove a team's profiles."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import complete_team


@click.command("remove")
@click.argument("name", shell_complete=complete_team)
def command(name: str) -> None:
    """Remove a team's profiles from the search path. Existing runs keep their own copy of their profile.

    \b
    hpc-launch sites remove team
    """
    from hpc_launch.cli.warn import print_note
    from hpc_launch.site_tools.team_sources import remove

    team = remove(name)
    print_note(f"removed {team.name} ({team.url})")
