"""Options and arguments shared by several verbs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import click

PRINTED = 500
"""Values of a list in one write."""


def complete_site(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a site profile."""
    from hpc_launch.sites.search_path import profile_names

    return [name for name in profile_names() if name.startswith(incomplete)]


def complete_team(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a team added by `sites add`."""
    from hpc_launch.sites.search_path import teams

    return [team.name for team in teams() if team.name.startswith(incomplete)]


job_argument = click.argument("job", type=click.Path(path_type=Path, readable=False))

site_option = click.option(
    "--site", metavar="NAME", shell_complete=complete_site, help="Site profile, by name or file."
)

set_option = click.option(
    "--set",
    "sets",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a key of the job file by its dotted path, e.g. --set args.lr=0.001. Repeatable.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def echo_json_list(values: Iterable[object]) -> None:
    """Print a list as `echo_json` does, without holding all of it in memory."""
    import json

    from msgspec.json import format as indented

    before, left = "[", iter(values)
    while part := list(islice(left, PRINTED)):
        texts = (indented(json.dumps(value), indent=2).replace("\n", "\n  ") for value in part)
        click.echo("".join([before, "\n  ", ",\n  ".join(texts)]), nl=False)
        before = ","
    click.echo("[]" if before == "[" else "\n]")


def echo_json(value: object) -> None:
    """Print `value` as indented JSON. ASCII only, so that foreign text cannot control the terminal."""
    import json

    click.echo(json.dumps(value, indent=2))
