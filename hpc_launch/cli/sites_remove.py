"""`sites remove`: remove a team's profiles."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import complete_team, echo_json, json_option


@click.command("remove")
@click.argument("name", shell_complete=complete_team)
@json_option
def command(name: str, as_json: bool) -> None:
    """Remove a team's profiles from the search path. Existing runs keep their own copy of their profile.

    \b
    hpc-launch sites remove team
    """
    from hpc_launch.cli.warn import print_note
    from hpc_launch.site_tools.team_sources import remove

    team = remove(name)
    if as_json:
        echo_json({"name": team.name, "url": team.url})
    else:
        print_note(f"removed {team.name} ({team.url})")
