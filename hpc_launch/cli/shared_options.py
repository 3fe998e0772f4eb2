"""Options that several verbs share, so that they are spelt and explained alike."""

from __future__ import annotations

from pathlib import Path

import click


def complete_site(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of site profiles, for the shell."""
    from hpc_launch.sites.search_path import profile_names

    return [name for name in profile_names() if name.startswith(incomplete)]


def complete_team(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of what `sites add` added, for the shell."""
    from hpc_launch.sites.team_profiles import teams

    return [team.name for team in teams() if team.name.startswith(incomplete)]


job_argument = click.argument("job", type=click.Path(path_type=Path))

site_option = click.option(
    "--site", metavar="NAME", shell_complete=complete_site, help="The site profile, by name or file."
)

set_option = click.option(
    "--set",
    "sets",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a key of the job file, dotted: --set args.lr=0.001. May be repeated.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")


def echo_json(value: object) -> None:
    """Print what `json_option` asks for. ASCII: text from elsewhere must not steer a terminal that shows this."""
    import json

    click.echo(json.dumps(value, indent=2))
