"""`sites list`: list the profiles on the search path."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import echo_json, json_option
from hpc_launch.cli.warn import print_note


@click.command("list")
@click.option("--all", "every", is_flag=True, help="Include bases, which other profiles extend.")
@json_option
def command(every: bool, as_json: bool) -> None:
    """List the profiles on the search path, with kind, status, grade and layer.

    \b
    hpc-launch sites list
    hpc-launch sites list --json
    """
    from hpc_launch.site_tools.list_profiles import profile_summaries

    profiles = profile_summaries(bases=every or as_json)
    if as_json:
        from msgspec.structs import asdict

        echo_json([asdict(one) for one in profiles])
        return
    from hpc_launch.view.profile_tables import table

    for line in table(profiles):
        click.echo(line)
    from hpc_launch.site_tools.team_sources import outdated_reason
    from hpc_launch.sites.team_profiles import teams

    for team in teams():
        why = outdated_reason(team)
        if why:
            print_note(f"{team.name}: {why}; see `hpc-launch sites diff {team.name}`")
