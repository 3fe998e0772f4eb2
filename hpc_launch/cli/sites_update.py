"""`sites update`: update a team's profiles to another revision."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import complete_team, json_option


@click.command("update")
@click.argument("name", shell_complete=complete_team)
@click.option("--revision", metavar="REV", help="Commit, tag or branch to pin (default: the same as before).")
@click.option(
    "--trust", "trusted", metavar="COMMIT", help="Full commit that may choose what jobs run; review it first."
)
@json_option
def command(name: str, revision: str | None, trusted: str | None, as_json: bool) -> None:
    """Update a team's profiles to another revision, on top of the bases shipped with this version of hpc-launch.
    Preview the changes with `sites diff`.

    \b
    hpc-launch sites diff team --revision v4
    hpc-launch sites update team --revision v4
    """
    from hpc_launch.cli.sites_add import print_team
    from hpc_launch.site_tools.team_sources import update

    print_team(update(name, revision, trusted), as_json=as_json)
