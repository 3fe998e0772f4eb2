"""`sites diff`: compare two profiles, or two revisions of a team's profiles."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import complete_site, echo_json, json_option


@click.command("diff")
@click.argument("one", metavar="PROFILE|TEAM", shell_complete=complete_site)
@click.argument("other", metavar="[PROFILE]", required=False, shell_complete=complete_site)
@click.option(
    "--revision",
    "revisions",
    metavar="REV",
    multiple=True,
    help="Revision of the team to compare with; give two to compare them.",
)
@json_option
def command(one: str, other: str | None, revisions: tuple[str, ...], as_json: bool) -> None:
    """Compare two profiles, by key and by the scripts of two small jobs.

    Profiles are given by name or file; a run keeps its profile as `site.yaml`. For a TEAM added by `sites add`,
    compares the pinned profiles with the same revision under this version of hpc-launch, or with --revision.

    \b
    hpc-launch sites diff juwels-booster ./mine.yaml
    hpc-launch sites diff team
    hpc-launch sites diff team --revision v4
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.site_tools import diff_profiles

    if other is not None:
        if revisions:
            raise UsageError(
                "--revision requires a TEAM, not two profiles", "hpc-launch sites diff TEAM --revision REV"
            )
        diffs = diff_profiles.compare(one, other)
    else:
        team = diff_profiles.team_or_none(one)
        if team is None:
            raise UsageError(f"no team named {one}", "name two profiles, or a team added by `sites add`")
        if len(revisions) > 2:
            raise UsageError("--revision can be given at most twice")
        diffs = (
            diff_profiles.compare_revisions(team, revisions)
            if revisions
            else diff_profiles.compare_with_installed(team)
        )
    if as_json:
        echo_json([diff.as_json() for diff in diffs])
        return
    from hpc_launch.view.profile_tables import difference_lines

    for line in difference_lines(diffs):
        click.echo(line)
    if not diffs:
        click.echo("no differences", err=True)
