"""Add, update and remove a team's profiles, a pinned copy of a repository or a shared folder; trust single files."""

from __future__ import annotations

import filecmp
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import asdict, replace

from hpc_launch import __version__
from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import read_text, write_json
from hpc_launch.base.findings import Finding
from hpc_launch.base.user_dirs import make_private
from hpc_launch.job.yaml_source import MAX_BYTES, read_document
from hpc_launch.site_tools import git
from hpc_launch.site_tools.check_profile import golden_scripts
from hpc_launch.sites import trust
from hpc_launch.sites.layers import chain, parse_layer
from hpc_launch.sites.search_path import (
    BASES,
    BELOW,
    ENDING,
    PINNED,
    RECORD,
    SCRIPTS,
    Team,
    find_team,
    search_path,
    teams_folder,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
Files = dict[tuple[str, ...], str]
"""The text of each file by its path."""


def add(source: str, revision: str | None, trusted: str | None, name: str | None) -> Team:
    """Add a repository at a revision, or a folder. Raises UsageError if it is not available."""
    is_folder = os.path.isdir(source) and revision is None
    team_name = name or re.sub(r"(\.git)?/*\Z", "", source).rsplit("/", 1)[-1].rsplit(":", 1)[-1]
    if not _NAME.match(team_name):
        raise UsageError(f"{team_name!r} is not a valid team name", "specify one with --name")
    existing = find_team(team_name)
    url = os.path.abspath(source) if is_folder else git.repository_url(source)
    if existing is not None and existing.url != url:
        raise UsageError(
            f"`{team_name}` already points to {existing.url}",
            f"use another --name, or run `hpc-launch sites remove {team_name}`",
        )
    if is_folder:
        if trusted is not None:
            hint = "trust single files: `hpc-launch sites add FILE --trust DIGEST`"
            raise UsageError("a folder cannot be trusted, because its content may change at any time", hint)
        return _add_folder(team_name, url)
    if revision is None:
        raise UsageError("a repository requires a revision", "add --revision COMMIT, or a tag")
    return _pin(team_name, url, revision, trusted)


def trust_profile(file: Path, expected: str | None) -> Team:
    """Trust the content of a file if it has the expected digest. Raises UsageError."""
    try:
        actual = trust.digest(read_text(file, errors="surrogateescape", longest=MAX_BYTES))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    if actual != expected:
        message = f"the content of {file} has the digest {actual}"
        raise UsageError(message, "review the file, then specify this digest with --trust")
    with _report_write_errors(str(file)):
        trust.trust([actual], str(file.absolute()))
    return Team(file.stem, str(file.absolute()), commit=actual)


def update(name: str, revision: str | None, trusted: str | None) -> Team:
    """Pin another revision of a repository, or without `revision` the same one again with the installed bases."""
    team = get_team(name)
    if team.commit is None:
        raise UsageError(f"{name} is a folder and cannot be updated", "changes in the folder take effect immediately")
    if revision is None and trusted is None:
        return _repin(team)
    return _pin(name, team.url, revision or team.commit, trusted)


def remove(name: str) -> str:
    """Remove the source added under a name, or the trust in a file. Returns its address. Raises UsageError."""
    if "/" in name:
        path = os.path.abspath(name)
        if not trust.withdraw(path):
            raise UsageError(f"{path} was not trusted", "run `hpc-launch sites list` to show the layers")
        return path
    team = get_team(name)
    with _report_write_errors(name):
        trust.withdraw(name)
        trust.withdraw(team.url)
        shutil.rmtree(teams_folder() / name)
    return team.url


def get_team(name: str) -> Team:
    """The source added under a name. Raises UsageError if there is none."""
    team = find_team(name)
    if team is None:
        raise UsageError(f"team `{name}` not found", "run `hpc-launch sites list` to show the layers")
    return team


@contextmanager
def at_revision(team: Team, revision: str) -> Iterator[Path]:
    """Profiles of a team at another revision, in a temporary folder. Raises UsageError."""
    _, files = _fetch(team.url, revision)
    with tempfile.TemporaryDirectory(prefix="hpc-launch-team-") as scratch:
        _write_files(Path(scratch), files)
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


def profiles_in(folder: Path) -> list[Path]:
    """Systems and templates in a folder, without its bases."""
    return sorted(path for path in folder.glob(f"*{ENDING}") if os.path.isfile(path))


def files_to_review(team: Team) -> Iterator[Finding]:
    """HL313 for each of a team's profiles that is not trusted and sets more than facts."""
    for path in sorted([*team.folder.glob(f"*{ENDING}"), *team.folder.glob(f"{BASES}/*{ENDING}")]):
        document, _ = read_document(path)
        if document is not None and not trust.is_trusted(path, document):
            yield from trust.untrusted_keys(path, document, parse_layer(path.stem, document, []))


def current_parent_folders(name: str) -> list[Path]:
    """Folders in which a team's profiles look up parents, besides their own: other teams', the machine's and the
    shipped ones."""
    own = {"user", "project", "HPC_LAUNCH_SITE_PATH", f"team {name}", f"shared {name}"}
    return [folder for layer, folder in search_path() if layer not in own]


def _add_folder(name: str, folder: str) -> Team:
    team = Team(name, folder, version=__version__)
    with _report_write_errors(name):
        home = make_private(teams_folder() / name)
        _set_link(home, folder)
        write_json(home / RECORD, asdict(team))
    return team


def _pin(name: str, url: str, revision: str, trusted: str | None) -> Team:
    if trusted is not None and not git.is_commit(trusted):
        hint = "review the profiles, then specify all 40 digits of the commit, which `sites add` prints"
        raise UsageError(f"--trust requires a full commit, not {trusted}: others can move a tag or a branch", hint)
    commit, files = _fetch(url, revision)
    if trusted is not None and trusted != commit:
        message = f"{trusted} is not the requested revision, which is commit {commit}"
        raise UsageError(message, "review the requested revision, and trust its commit")
    if not any(len(path) == 1 for path in files):
        message = f"no profile found in {url} at {revision}"
        raise UsageError(message, "put profiles at the top level or in the folder sites")
    return _install(Team(name, url, revision, commit), files, trust_all=trusted is not None)


def _repin(team: Team) -> Team:
    files = {
        path.relative_to(team.folder).parts: path.read_text("utf-8", "surrogateescape")
        for path in team.folder.rglob(f"*{ENDING}")
        if BELOW not in path.parts
    }
    return _install(team, files, trust_all=False)


def _install(team: Team, files: Files, *, trust_all: bool) -> Team:
    """Write a new copy next to the current one, then switch the link, so that concurrent jobs see one of the two."""
    team = replace(team, version=__version__)
    with _report_write_errors(team.name):
        home = make_private(teams_folder() / team.name)
        previous = os.path.join(home, os.readlink(home / PINNED)) if (home / PINNED).is_symlink() else None
        new = home / f"{(team.commit or '')[:12]}-{secrets.token_hex(4)}"
        new.mkdir(mode=0o700)
        try:
            _write_files(new, files)
            before = trust.trusted_digests(team.name)
            trusted = {one for one in map(trust.digest, files.values()) if trust_all or one in before}
            trusted |= set(_copy_parents(team.name, new))
            trust.trust(before | trusted, team.name)
            _render_scripts(new)
            _set_link(home, new.name)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        trust.trust(trusted, team.name)
        write_json(home / RECORD, asdict(team))
        if previous is not None:
            shutil.rmtree(previous, ignore_errors=True)
    return team


def _copy_parents(name: str, folder: Path) -> Iterator[str]:
    """Copy parents from other folders, by layer, so that an upgrade does not change the profiles. Yields the digests of
    the trusted ones, because a copy at another place has the same content."""
    layers = current_parent_folders(name)
    for profile in profiles_in(folder):
        for layer in chain(profile, [], folders=layers):
            home = layer.path.parent.parent if layer.path.parent.name == BASES else layer.path.parent
            if home in layers:
                copy_path = folder / BELOW / f"{layers.index(home):02d}" / layer.path.relative_to(home)
                copy_path.parent.mkdir(parents=True, exist_ok=True)
                copy_path.write_text(layer.document.text, "utf-8", "surrogateescape")
                if layer.trusted:
                    yield trust.digest(layer.document.text)


def _render_scripts(folder: Path) -> None:
    for profile in profiles_in(folder):
        for golden in golden_scripts(profile, (), None):
            if golden.script is not None:
                path = folder / SCRIPTS / profile.stem / f"{golden.job}.sh"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(golden.script, "utf-8")


def _write_files(folder: Path, files: Files) -> None:
    for parts, text in files.items():
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", "surrogateescape")


def _set_link(home: Path, target: str) -> None:
    """Switch the link atomically."""
    link = home / f".{PINNED}.{secrets.token_hex(4)}"
    link.symlink_to(target)
    os.replace(link, home / PINNED)


def _fetch(url: str, revision: str) -> tuple[str, Files]:
    """The commit, and its profiles: those in `sites/` of the repository if it exists, else those at the top level."""
    commit, files = git.yaml_files(url, revision)
    if any(path[0] == "sites" and len(path) == 2 for path in files):
        files = {path[1:]: text for path, text in files.items() if path[0] == "sites"}
    return commit, {path: text for path, text in files.items() if len(path) == 1 or path[0] in (BASES, "rules")}


@contextmanager
def _report_write_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = error.filename or teams_folder() / name
        raise UsageError(f"cannot write {path}: {error.strerror}", "make it writable") from error
