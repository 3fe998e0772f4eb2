"""`sites add`: add a team's profiles, pinned to a revision of their repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpc_launch.cli.shared_options import echo_json, json_option

if TYPE_CHECKING:
    from hpc_launch.sites.team_profiles import Team


@click.command("add")
@click.argument("source", metavar="GIT_URL|FOLDER")
@click.option("--revision", metavar="REV", help="Commit, tag or branch to pin; stored as a commit.")
@click.option(
    "--trust", "trusted", metavar="COMMIT", help="Full commit that may choose what jobs run; review it first."
)
@click.option("--name", metavar="NAME", help="Name of the team (default: the repository's name).")
@json_option
def command(source: str, revision: str | None, trusted: str | None, name: str | None, as_json: bool) -> None:
    """Add a team's profiles to the search path.

    A git repository is copied at one revision, which only `sites update` changes. A folder, e.g. on shared storage, is
    read in place.

    \b
    hpc-launch sites add https://git.example.org/team/sites.git --revision v3
    hpc-launch sites add /project/team/sites
    """
    from hpc_launch.site_tools.team_sources import add

    print_team(add(source, revision, trusted, name), as_json=as_json)


def print_team(team: Team, *, as_json: bool) -> None:
    """Print the team's profiles, and the values in them that decide which code a job runs."""
    from hpc_launch.cli.warn import show_findings
    from hpc_launch.job.shell_text import visible
    from hpc_launch.site_tools.pinned_copy import profiles_in
    from hpc_launch.site_tools.team_sources import values_to_review

    names = [path.stem for path in profiles_in(team.folder)]
    values = values_to_review(team)
    if as_json:
        findings = [finding.as_json() for finding, trusted in values if not trusted]
        pinned = {"revision": team.revision, "commit": team.commit}
        echo_json({"name": team.name, "url": team.url, **pinned, "profiles": names, "findings": findings})
        return
    at = f" at {team.commit}" if team.commit else ""
    click.echo(visible(f"{team.name}: {team.url}{at}; profiles: {', '.join(names) or 'none'}"), err=True)
    for finding, trusted in values:
        if trusted:
            message = finding.message.replace("an untrusted profile", "the profile")
            click.echo(visible(f"{finding.place}: trusted: {message}"), err=True)
    show_findings([finding for finding, trusted in values if not trusted], err=True)
