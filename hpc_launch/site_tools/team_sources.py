"""Add, update and remove a team's profiles: a pinned copy of a repository, or a shared folder."""

from __future__ import annotations

import datetime as dt
import filecmp
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import asdict

from hpc_launch import __version__
from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import write_json
from hpc_launch.base.findings import Finding
from hpc_launch.base.user_dirs import make_private
from hpc_launch.job.yaml_source import read_document
from hpc_launch.site_tools import git
from hpc_launch.site_tools.pinned_copy import current_parent_folders, install, set_link, write_files
from hpc_launch.sites import trust
from hpc_launch.sites.layers import BASES, parsed_layer
from hpc_launch.sites.removed_values import removals_to_review
from hpc_launch.sites.search_path import ENDING
from hpc_launch.sites.team_profiles import BELOW, RECORD, SCRIPTS, Team, find_team, teams_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


def add(source: str, revision: str | None, trusted: str | None, name: str | None) -> Team:
    """Add a repository at a revision, or a folder. Raises UsageError if it is not available."""
    is_folder = os.path.isdir(source) and revision is None
    team_name = name or re.sub(r"(\.git)?/*\Z", "", source).rsplit("/", 1)[-1].rsplit(":", 1)[-1]
    if not _NAME.match(team_name):
        raise UsageError(f"{team_name!r} is not a valid team name", "specify one with --name")
    existing = find_team(team_name)
    url = os.path.abspath(source) if is_folder else git.repository(source)
    if existing is not None and existing.url != url:
        raise UsageError(
            f"`{team_name}` already points to {existing.url}",
            f"use another --name, or run `hpc-launch sites remove {team_name}`",
        )
    if is_folder:
        if trusted is not None:
            raise UsageError(
                "a folder cannot be trusted, because its content may change at any time", "use a git repository"
            )
        return _add_folder(team_name, url)
    if revision is None:
        raise UsageError("a repository requires a revision", "add --revision COMMIT, or a tag")
    return _pin(team_name, url, revision, trusted)


def update(name: str, revision: str | None, trusted: str | None) -> Team:
    """Pin another revision of a repository, or without `revision` the same one again with the installed bases."""
    team = get_team(name)
    if team.commit is None:
        raise UsageError(f"{name} is a folder and cannot be updated", "changes in the folder take effect immediately")
    if revision is None and trusted is None:
        return _repin(team)
    return _pin(name, team.url, revision or team.commit, trusted)


def remove(name: str) -> Team:
    """Remove the source added under a name."""
    team = get_team(name)
    with _report_write_errors(name):
        shutil.rmtree(teams_folder() / name)
    return team


def get_team(name: str) -> Team:
    """The source added under a name. Raises UsageError if there is none."""
    team = find_team(name)
    if team is None:
        raise UsageError(f"team `{name}` not found", "run `hpc-launch sites list` to show the layers")
    return team


@contextmanager
def at_revision(team: Team, revision: str) -> Iterator[Path]:
    """Profiles of a team at another revision, in a temporary folder. Raises UsageError."""
    with _fetch(team.url, revision) as (_, files), tempfile.TemporaryDirectory(prefix="hpc-launch-team-") as scratch:
        write_files(Path(scratch), files)
        yield Path(scratch)


@contextmanager
def with_current_parents(team: Team) -> Iterator[Path]:
    """The pinned profiles with currently installed parents, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="hpc-launch-team-") as scratch:
        into = Path(scratch)
        shutil.copytree(team.folder, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns(BELOW, SCRIPTS))
        yield into


def outdated_reason(team: Team) -> str | None:
    """Why pinning again could change the scripts. None if no reason is known."""
    if team.commit is None:
        return None
    if team.version != __version__:
        return f"pinned with hpc-launch {team.version}"
    layers = current_parent_folders(team.name)
    for level in (team.folder / BELOW).glob("*"):
        for pinned_file in level.rglob(f"*{ENDING}"):
            current = [layer / pinned_file.relative_to(level) for layer in layers]
            if not any(os.path.isfile(path) and filecmp.cmp(path, pinned_file, shallow=False) for path in current):
                return f"its parent {pinned_file.stem} has changed"
    return None


def pinned_scripts(team: Team, profile: str) -> dict[str, str]:
    """Scripts that a pinned profile rendered when it was pinned, by job."""
    folder = team.folder / SCRIPTS / profile
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.sh"))}


def values_to_review(team: Team) -> list[tuple[Finding, bool]]:
    """HL313 for each value of a team's files that requires trust, and whether the file is trusted."""
    result: list[tuple[Finding, bool]] = []
    for path in sorted(team.folder.rglob(f"*{ENDING}")):
        document, _ = read_document(path)
        if document is not None and BELOW not in path.relative_to(team.folder).parts:
            trusted = trust.is_trusted(path, document)
            layer = parsed_layer(path, document)
            result += [(one, trusted) for one in trust.untrusted_values(path, layer)]
            result += [(one, trusted) for one in removals_to_review(layer, trust.trust_hint(path))]
    return result


def _add_folder(name: str, folder: str) -> Team:
    team = Team(name, folder, on=_today(), version=__version__)
    with _report_write_errors(name):
        home = make_private(teams_folder() / name)
        set_link(home, folder)
        write_json(home / RECORD, asdict(team))
    return team


def _pin(name: str, url: str, revision: str, trusted: str | None) -> Team:
    with _fetch(url, revision, trusted) as (commit, files):
        if not any(len(path) == 1 for path in files):
            raise UsageError(
                f"no profile found in {url} at {revision}", "put profiles at the top level or in the folder sites"
            )
        with _report_write_errors(name):
            team = install(Team(name, url, revision, commit, _today(), __version__), files)
            if trusted is not None:
                trust.trust(files.values())
        return team


def _repin(team: Team) -> Team:
    files = {
        path.relative_to(team.folder).parts: path.read_text("utf-8", "surrogateescape")
        for path in team.folder.rglob(f"*{ENDING}")
        if BELOW not in path.parts
    }
    with _report_write_errors(team.name):
        return install(Team(team.name, team.url, team.revision, team.commit, _today(), __version__), files)


@contextmanager
def _fetch(url: str, revision: str, trusted: str | None = None) -> Iterator[tuple[str, dict[tuple[str, ...], str]]]:
    """The commit, and its profiles: those in `sites/` of the repository if it exists, else those at the top level."""
    git.revision(revision)
    if trusted is not None and not git.is_commit(trusted):
        hint = "review the profiles, then specify all 40 digits of the commit, which `sites add` prints"
        raise UsageError(f"--trust requires a full commit, not {trusted}: others can move a tag or a branch", hint)
    with tempfile.TemporaryDirectory(prefix="hpc-launch-git-") as scratch:
        folder = Path(scratch) / "repository"
        git.clone(git.repository(url), folder)
        commit = git.commit_of(folder, revision)
        if trusted is not None and trusted != commit:
            message = f"{trusted} is not the requested revision, which is commit {commit}"
            raise UsageError(message, "review the requested revision, and trust its commit")
        files = dict(git.yaml_files(folder, commit))
    if any(path[0] == "sites" and len(path) == 2 for path in files):
        files = {path[1:]: text for path, text in files.items() if path[0] == "sites"}
    yield commit, {path: text for path, text in files.items() if len(path) == 1 or path[0] in (BASES, "rules")}


@contextmanager
def _report_write_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = error.filename or teams_folder() / name
        raise UsageError(f"cannot write {path}: {error.strerror}", "make it writable") from error


def _today() -> str:
    return dt.datetime.now(dt.timezone.utc).date().isoformat()
