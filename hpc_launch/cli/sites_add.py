"""`sites add`: take a team's profiles, at one revision of their repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hpc_launch.sites.team_profiles import Team


@click.command("add")
@click.argument("source", metavar="GIT_URL|FOLDER")
@click.option("--revision", metavar="REV", help="The commit, tag or branch to take; it is kept as that commit.")
@click.option("--trust", "trusted", metavar="REV", help="Let raw shell lines of that revision count: read them first.")
@click.option("--name", metavar="NAME", help="What to call it; by default as the repository.")
def command(source: str, revision: str | None, trusted: str | None, name: str | None) -> None:
    """Add a team's profiles to the search path. Of a git repository a copy of one revision is kept, which changes only
    by `sites update`; a folder, as on shared storage, is read as it is.

    \b
    hpc-launch sites add https://git.example.org/team/sites.git --revision v3
    hpc-launch sites add /project/team/sites
    """
    from hpc_launch.site_tools.team_sources import add

    say(add(source, revision, trusted, name))


def say(team: Team) -> None:
    """What is there now, and which raw lines in it do not count."""
    from hpc_launch.cli.warn import show_findings
    from hpc_launch.site_tools.team_sources import profiles_in, untrusted
    from hpc_launch.spec.shell_text import visible

    names = ", ".join(path.stem for path in profiles_in(team.folder)) or "none"
    at = f" at {team.commit}" if team.commit else ""
    click.echo(visible(f"{team.name}: {team.url}{at}; profiles: {names}"), err=True)
    show_findings(untrusted(team), err=True)
