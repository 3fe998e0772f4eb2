"""`sites diff`: what differs between two profiles, or two revisions of a team's."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import complete_site, echo_json, json_option


@click.command("diff")
@click.argument("one", metavar="PROFILE|TEAM", shell_complete=complete_site)
@click.argument("other", metavar="[PROFILE]", required=False, shell_complete=complete_site)
@click.option(
    "--revision", "revisions", metavar="REV", multiple=True, help="Another revision of the team; two may be given."
)
@json_option
def command(one: str, other: str | None, revisions: tuple[str, ...], as_json: bool) -> None:
    """Show what differs, key by key, and in the scripts of two small jobs.

    Of two profiles, by name or file; a run keeps the one that it was made with as `site.yaml`. Of a TEAM that
    `sites add` added: what is pinned, and what the same revision would be with this version of hpc-launch, or another
    revision.

    \b
    hpc-launch sites diff juwels-booster ./mine.yaml
    hpc-launch sites diff team
    hpc-launch sites diff team --revision v4
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.site_tools import diff_profiles

    if other is not None:
        if revisions:
            raise UsageError("--revision is for the profiles of one team", "hpc-launch sites diff TEAM --revision REV")
        found = diff_profiles.compare(one, other)
    else:
        team = diff_profiles.team_or_none(one)
        if team is None:
            raise UsageError(f"no team is called {one}", "name two profiles, or a team that `sites add` added")
        if len(revisions) > 2:
            raise UsageError("two revisions can be compared, not more")
        found = diff_profiles.compare_revisions(team, revisions) if revisions else diff_profiles.compare_with_now(team)
    if as_json:
        echo_json([one.as_json() for one in found])
        return
    from hpc_launch.view.profile_tables import differences

    for line in differences(found):
        click.echo(line)
    if not found:
        click.echo("no difference", err=True)
