"""`sites`: show, compare, check and share site profiles."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from hpc_launch.base.errors import UsageError
from hpc_launch.base.installed import shipped
from hpc_launch.cli.render import format_option, print_values, report
from hpc_launch.cli.shared_options import LazyGroup, complete_site, complete_team, echo_answer, echo_json, json_option
from hpc_launch.cli.terminal import TERMINAL, print_note
from hpc_launch.job.shell_text import visible
from hpc_launch.job.units import counted
from hpc_launch.prepare.prepare import detect_site
from hpc_launch.site_tools import team_sources
from hpc_launch.site_tools.check_profile import check_all
from hpc_launch.site_tools.show_profiles import compare, compare_revisions, profile_details, profile_summaries
from hpc_launch.sites.search_path import Team, find_team
from hpc_launch.view.format_values import aligned, clean

if TYPE_CHECKING:
    from hpc_launch.site_tools.show_profiles import Difference

HEADERS = ("NAME", "KIND", "STATUS", "BASIS", "GRADE", "AS OF", "LAYER", "TITLE")


def _load(name: str) -> click.Command:
    module = importlib.import_module("hpc_launch.cli.sites_learn") if name == "learn" else None
    loaded: click.Command = module.command if module else command.commands[name]
    return loaded


@click.group("sites", cls=LazyGroup, load=_load)
def command() -> None:
    """Show, compare, check and share site profiles.

    \b
    hpc-launch sites list
    hpc-launch sites show lumi-g queues
    """


@command.command("list", short_help="list the profiles on the search path")
@click.option("--all", "every", is_flag=True, help="Include bases, which other profiles extend.")
@json_option
def list_command(every: bool, as_json: bool) -> None:
    """List the profiles on the search path, with kind, status, basis, grade and layer.

    \b
    hpc-launch sites list
    hpc-launch sites list --json
    """
    profiles = profile_summaries(bases=every or as_json)
    rows = (
        (one.name, one.kind, one.status, one.basis or "", one.grade or "", one.as_of or "", one.layer, one.title)
        for one in profiles
    )
    echo_answer(to_builtins(profiles), aligned([HEADERS, *rows]), as_json=as_json)


@command.command("show", short_help="show a resolved profile, with the origin of each value")
@click.argument("name", shell_complete=complete_site)
@click.argument("key", required=False)
@click.option("--yaml", "as_yaml", is_flag=True, help="Print a self-contained YAML file, with origins as comments.")
@json_option
def show_command(name: str, key: str | None, as_yaml: bool, as_json: bool) -> None:
    """Show a profile with all layers resolved: one value per line, with the file and line that set it.

    NAME is a profile, base or template, or the path of a file.

    \b
    hpc-launch sites show lumi-g
    hpc-launch sites show lumi-g queues.standard-g
    hpc-launch sites show lumi-g --yaml > copy.yaml
    """
    if as_yaml and (key is not None or as_json):
        raise UsageError("--yaml cannot be combined with KEY or --json")
    profile = profile_details(name)
    TERMINAL.warn(profile.findings)
    if as_yaml:
        click.echo(profile.text, nl=False)
        return
    print_values(profile.lines, key, as_json=as_json)


@command.command("diff", short_help="compare two profiles, or two revisions of a team's profiles")
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
def diff_command(one: str, other: str | None, revisions: tuple[str, ...], as_json: bool) -> None:
    """Compare two profiles, by key and by the scripts of two small jobs.

    Profiles are given by name or file; a run keeps its profile as `site.yaml`. For a TEAM added by `sites add`,
    compares its profiles with what `sites update` would copy, or with --revision.

    \b
    hpc-launch sites diff juwels-booster ./mine.yaml
    hpc-launch sites diff team
    hpc-launch sites diff team --revision v4
    """
    if other is not None:
        if revisions:
            hint = "hpc-launch sites diff TEAM --revision REV"
            raise UsageError("--revision requires a TEAM, not two profiles", hint)
        diffs = compare(one, other)
    else:
        team = find_team(one) if "/" not in one else None
        if team is None:
            raise UsageError(f"no team named {one}", "name two profiles, or a team added by `sites add`")
        if len(revisions) > 2:
            raise UsageError("--revision can be given at most twice")
        diffs = compare_revisions(team, revisions)
    note = "" if diffs else "no differences"
    echo_answer(to_builtins(diffs), _difference_lines(diffs), note, as_json=as_json)


def _difference_lines(differences: Sequence[Difference]) -> Iterator[str]:
    """For each profile that differs: its changed keys with old and new value, and the changed script lines."""
    for one in differences:
        yield f"{clean(one.profile)}: {clean(one.note)}" if one.note else clean(one.profile)
        for change in one.changes:
            old = "" if change.old is None else f"- {clean(change.old)}"
            new = "" if change.new is None else f"+ {clean(change.new)}"
            yield f"  {clean(change.key)}"
            yield from (
                f"    {text}   {clean(where)}".rstrip()
                for text, where in ((old, change.old_origin), (new, change.new_origin))
                if text
            )
        for job, lines in one.scripts.items():
            yield f"  script of {clean(job)}"
            yield from (f"    {clean(line)}" for line in lines)


@command.command("detect", short_help="detect the site of this machine, and say why")
@json_option
def detect_command(as_json: bool) -> int:
    """Detect the site that a job without `site:` uses on this machine. Exits with 3 if none or several match,
    and with 4 if only the Slurm controller could tell and does not answer.

    Checks, in this order: environment variables, host names, files, and Slurm's ClusterName.

    \b
    hpc-launch sites detect
    """
    detection = detect_site()
    chosen = detection.chosen
    code = 0 if chosen else 3 if detection.unreachable is None else 4
    if as_json:
        answer = {
            "site": chosen.name if chosen else None,
            "way": chosen.method if chosen else None,
            "because": chosen.reason if chosen else None,
            "file": str(chosen.path) if chosen else None,
            "matches": [{"site": one.name, "way": one.method, "because": one.reason} for one in detection.matches],
            "cluster": detection.cluster,
            "unreachable": detection.unreachable,
            "hint": None if chosen else detection.hint,
            "unread": [{"file": str(one.path), "fault": one.fault} for one in detection.unread],
        }
        echo_json(answer)
        return code
    for one in detection.unread:
        print_note(f"cannot read: {one.fault}")
    if chosen is None:
        print_note(detection.message)
        print_note(f"  hint: {detection.hint}")
        return code
    click.echo(visible(f"{chosen.name}  {chosen.reason}"))
    return 0


command.add_command(click.Command("learn", short_help="draft a profile of this cluster"))  # imported by `_load`


@command.command("check", short_help="check profiles, e.g. in CI; --live compares one with its cluster")
@click.argument("profiles", nargs=-1, required=True, metavar="PROFILE|FOLDER...", shell_complete=complete_site)
@click.option("--update-golden", is_flag=True, help="Regenerate the golden scripts; review the changes.")
@format_option
@click.option("--live", is_flag=True, help="Compare the profile with this cluster.")
@json_option
def check_command(profiles: tuple[str, ...], update_golden: bool, style: str, live: bool, as_json: bool) -> int:
    """Check profiles before sharing them: types, sources and their age, no personal account, and unchanged scripts in
    the `golden` folder beside them. Exits with 3 if there are errors.

    With --live, prints every value in which the profile differs from the cluster.

    \b
    hpc-launch sites check sites/
    hpc-launch sites check --format github sites/mycluster.yaml
    hpc-launch sites check --live mycluster
    """
    if live:
        return _check_live(profiles, as_json=as_json or style == "json")
    try:
        count, findings = check_all(profiles, update_golden=update_golden)
    except OSError as error:
        message = f"cannot write {error.filename}: {error.strerror}"
        raise UsageError(message, "golden scripts are stored beside the profile") from error
    clean = f"{counted(count, 'profile')} checked, no errors"
    return report(findings, "json" if as_json else style, clean)


def _check_live(profiles: tuple[str, ...], *, as_json: bool) -> int:
    """Print a line on stdout for each difference from the cluster. Returns 3 if there is one."""
    from hpc_launch.site_tools.drift import drift

    with TERMINAL.doing("querying Slurm about the cluster"):
        rows = [(name, row) for name in profiles for row in drift(name)]
    lines = []
    for name, row in rows:
        ours, theirs = row.profile or "nothing", row.cluster or "nothing"
        lines.append(visible(f"{name}: {row.key}: {ours} in the profile, {theirs} on the cluster: {row.effect}"))
    note = "" if rows else f"{', '.join(profiles)}: no differences from the cluster"
    echo_answer([{"site": name, **to_builtins(row)} for name, row in rows], lines, note, as_json=as_json)
    return 3 if rows else 0


@command.command("add", short_help="add a team's profiles, pinned to a revision of their repository")
@click.argument("source", metavar="GIT_URL|FOLDER|FILE")
@click.option("--revision", metavar="REV", help="Commit, tag or branch to pin; stored as a commit.")
@click.option("--trust", "trusted", metavar="DIGEST", help="Full commit, or SHA-256 of FILE; review it first.")
@click.option("--name", metavar="NAME", help="Name of the team (default: the repository's name).")
@json_option
def add_command(source: str, revision: str | None, trusted: str | None, name: str | None, as_json: bool) -> None:
    """Add a team's profiles to the search path, or trust a profile.

    A git repository is copied at one revision, which only `sites update` changes. A folder, e.g. on shared storage, is
    read in place. A profile of others may only state facts until it is trusted; any change to it ends the trust.

    \b
    hpc-launch sites add https://git.example.org/team/sites.git --revision v3
    hpc-launch sites add /project/team/sites
    """
    if os.path.isfile(source):
        team = team_sources.trust_profile(Path(source), trusted)
    else:
        team = team_sources.add(source, revision, trusted, name)
    _print_team(team, as_json=as_json)


@command.command("update", short_help="update a team's profiles to another revision")
@click.argument("name", shell_complete=complete_team)
@click.option("--revision", metavar="REV", help="Commit, tag or branch to copy (default: the same as before).")
@click.option("--trust", "trusted", metavar="COMMIT", help="Full commit to trust; review it first.")
@json_option
def update_command(name: str, revision: str | None, trusted: str | None, as_json: bool) -> None:
    """Update a team's profiles to another revision, or to what its branch or tag is now. Preview the changes with
    `sites diff`.

    \b
    hpc-launch sites diff team --revision v4
    hpc-launch sites update team --revision v4
    """
    _print_team(team_sources.update(name, revision, trusted), as_json=as_json)


def _print_team(team: Team, *, as_json: bool) -> None:
    """Print the team's profiles, and which of them require trust."""
    single = os.path.isfile(team.url)
    names = [team.name] if single else [path.stem for path in team_sources.profiles_in(team.folder)]
    findings = list(team_sources.files_to_review(team))
    rules = [path.name for path in team_sources.profiles_in(team.folder / "rules")]
    if as_json:
        source = {"name": team.name, "url": team.url, "revision": team.revision, "commit": team.commit}
        content = {"profiles": names, "rules": rules}
        echo_json({**source, **content, "findings": [finding.as_json() for finding in findings]})
        return
    at = f" at {team.commit}" if team.commit else ""
    shipped_names = {path.stem for path in team_sources.profiles_in(shipped("site_configs"))}
    replaced = [] if single else sorted(shipped_names.intersection(names))
    also = f"; in place of shipped ones: {', '.join(replaced)}" if replaced else ""
    also += f"; failure rules: {', '.join(rules)}" if rules else ""
    print_note(f"{team.name}: {team.url}{at}; profiles: {', '.join(names) or 'none'}{also}")
    TERMINAL.warn(findings)


@command.command("remove", short_help="remove a team's profiles")
@click.argument("name", metavar="NAME|FILE", shell_complete=complete_team)
@json_option
def remove_command(name: str, as_json: bool) -> None:
    """Remove a team's profiles from the search path, or the trust in a FILE. Existing runs keep their own copy of
    their profile.

    \b
    hpc-launch sites remove team
    """
    url = team_sources.remove(name)
    echo_answer({"name": name, "url": url}, (), f"removed {name} ({url})", as_json=as_json)
