"""Adding, moving and giving up what a team shares: a pinned copy of a repository's profiles, or a folder as it is."""

from __future__ import annotations

import datetime as dt
import os
import re
import secrets
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
from hpc_launch.site_tools import git
from hpc_launch.site_tools.golden_jobs import made_from
from hpc_launch.sites import trust
from hpc_launch.sites.layers import BASES, chain
from hpc_launch.sites.search_path import ENDING, search_path
from hpc_launch.sites.team_profiles import BELOW, PINNED, RECORD, SCRIPTS, Team, find_team, teams_folder
from hpc_launch.spec.yaml_source import read_document

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


def add(source: str, asked: str | None, trusted: str | None, name: str | None) -> Team:
    """Take a repository at a revision, or a folder without one. Raises UsageError where it cannot be had."""
    is_folder = os.path.isdir(source) and asked is None
    called = name or re.sub(r"(\.git)?/*\Z", "", source).rsplit("/", 1)[-1].rsplit(":", 1)[-1]
    if not _NAME.match(called):
        raise UsageError(f"{called!r} is no name for a team", "give one with --name")
    known = find_team(called)
    url = os.path.abspath(source) if is_folder else git.repository(source)
    if known is not None and known.url != url:
        raise UsageError(
            f"{called} is {known.url} already", f"give another --name, or `hpc-launch sites remove {called}`"
        )
    if is_folder:
        if trusted is not None:
            raise UsageError(
                "what a folder holds may change at any time, so it cannot be trusted", "use a git repository"
            )
        return _add_folder(called, url)
    if asked is None:
        raise UsageError("a repository is taken at one revision", "name it: --revision COMMIT, or a tag")
    return _pin(called, url, asked, trusted)


def update(name: str, asked: str | None, trusted: str | None) -> Team:
    """Move a repository to another revision; without one the same revision again, over the installed bases."""
    team = added(name)
    if team.commit is None:
        raise UsageError(f"{name} is a folder, which is read as it is", "there is nothing to update")
    if asked is None and trusted is None:
        return _again(team)
    return _pin(name, team.url, asked or team.commit, trusted)


def remove(name: str) -> Team:
    """Give up what was added under a name."""
    team = added(name)
    with _writing(name):
        shutil.rmtree(teams_folder() / name)
    return team


def added(name: str) -> Team:
    """What was added under a name. Raises UsageError where nothing was."""
    team = find_team(name)
    if team is None:
        raise UsageError(f"no team is called {name}", "hpc-launch sites list shows the layers")
    return team


@contextmanager
def at_revision(team: Team, asked: str) -> Iterator[Path]:
    """The profiles of a team at another revision, in a folder that goes afterwards. Raises UsageError."""
    with _fetched(team.url, asked) as (_, files), tempfile.TemporaryDirectory(prefix="hpc-launch-team-") as scratch:
        _write(Path(scratch), files)
        yield Path(scratch)


@contextmanager
def without_pins(team: Team) -> Iterator[Path]:
    """The pinned profiles as they would be over what is installed now, in a folder that goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="hpc-launch-team-") as scratch:
        into = Path(scratch)
        shutil.copytree(team.folder, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns(BELOW, SCRIPTS))
        yield into


def profiles_in(folder: Path) -> list[Path]:
    """The systems and templates of a folder; bases are read with them."""
    return sorted(path for path in folder.glob(f"*{ENDING}") if path.is_file())


def live_below(name: str) -> list[Path]:
    """Where a team's profiles find what they extend, beside their own folder: other teams', the machine's, ours."""
    own = {"user", "project", "HPC_LAUNCH_SITE_PATH", f"team {name}", f"shared {name}"}
    return [folder for layer, folder in search_path() if layer not in own]


def behind(team: Team) -> str | None:
    """Why a pinned copy may make other scripts when it is taken anew; None where nothing of that kind is known."""
    if team.commit is None:
        return None
    if team.version != __version__:
        return f"pinned with hpc-launch {team.version}"
    layers = live_below(team.name)
    for level in (team.folder / BELOW).glob("*"):
        for kept in level.rglob(f"*{ENDING}"):
            now = [layer / kept.relative_to(level) for layer in layers]
            if not any(path.is_file() and path.read_bytes() == kept.read_bytes() for path in now):
                return f"{kept.stem}, which it extends, has changed"
    return None


def recorded_scripts(team: Team, profile: str) -> dict[str, str]:
    """The scripts that a pinned profile rendered when it was pinned, by job."""
    folder = team.folder / SCRIPTS / profile
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.sh"))}


def untrusted(team: Team) -> list[Finding]:
    """HL313 for each raw line that does not count."""
    found: list[Finding] = []
    for path in sorted(team.folder.rglob(f"*{ENDING}")):
        document, _ = read_document(path)
        if document is not None and BELOW not in path.parts:
            found += trust.untrusted_lines(path, document)
    return found


def _add_folder(name: str, folder: str) -> Team:
    team = Team(name, folder, on=_today(), version=__version__)
    with _writing(name):
        home = teams_folder() / name
        home.mkdir(parents=True, exist_ok=True)
        _point(home, folder)
        write_json(home / RECORD, asdict(team))
    return team


def _pin(name: str, url: str, asked: str, trusted: str | None) -> Team:
    with _fetched(url, asked, trusted) as (commit, files):
        if not any(len(path) == 1 for path in files):
            raise UsageError(f"there is no profile in {url} at {asked}", "they lie at the top, or in the folder sites")
        with _writing(name):
            team = _place(Team(name, url, asked, commit, _today(), __version__), files)
            if trusted is not None:
                trust.trust(files.values())
        return team


def _again(team: Team) -> Team:
    files = {
        path.relative_to(team.folder).parts: path.read_text("utf-8", "surrogateescape")
        for path in team.folder.rglob(f"*{ENDING}")
        if BELOW not in path.parts
    }
    with _writing(team.name):
        return _place(Team(team.name, team.url, team.revision, team.commit, _today(), __version__), files)


@contextmanager
def _fetched(url: str, asked: str, trusted: str | None = None) -> Iterator[tuple[str, dict[tuple[str, ...], str]]]:
    """The commit that is meant, and its profiles; `sites/` in the repository where it is there, else its top."""
    git.revision(asked)
    with tempfile.TemporaryDirectory(prefix="hpc-launch-git-") as scratch:
        folder = Path(scratch) / "repository"
        git.clone(git.repository(url), folder)
        commit = git.commit_of(folder, asked)
        if trusted is not None and git.commit_of(folder, git.revision(trusted)) != commit:
            message = f"{trusted} is not the revision that is taken, {commit[:12]}"
            raise UsageError(message, "read what is taken, and trust that")
        files = dict(git.yaml_files(folder, commit))
    if any(path[0] == "sites" and len(path) == 2 for path in files):
        files = {path[1:]: text for path, text in files.items() if path[0] == "sites"}
    yield commit, {path: text for path, text in files.items() if len(path) == 1 or path[0] in (BASES, "rules")}


def _place(team: Team, files: dict[tuple[str, ...], str]) -> Team:
    """Write a copy beside the one in use, then point to it: a job that is planned meanwhile finds one of the two."""
    home = teams_folder() / team.name
    before = os.path.join(home, os.readlink(home / PINNED)) if (home / PINNED).is_symlink() else None
    new = home / f"{(team.commit or '')[:12]}-{secrets.token_hex(4)}"
    new.mkdir(parents=True)
    try:
        _write(new, files)
        _keep_below(team.name, new)
        _keep_scripts(new)
        _point(home, new.name)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    write_json(home / RECORD, asdict(team))
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)
    return team


def _write(folder: Path, files: dict[tuple[str, ...], str]) -> None:
    for parts, text in files.items():
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", "surrogateescape")


def _keep_below(name: str, folder: Path) -> None:
    """Copy what the profiles extend outside of their folder, by layer, so that an upgrade does not change them."""
    layers = live_below(name)
    for profile in profiles_in(folder):
        for layer in chain(profile, [], folders=layers):
            home = layer.path.parent.parent if layer.path.parent.name == BASES else layer.path.parent
            if home not in layers:
                continue
            below = folder / BELOW / f"{layers.index(home):02d}" / layer.path.relative_to(home)
            below.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(layer.path, below)


def _keep_scripts(folder: Path) -> None:
    for profile in profiles_in(folder):
        for made in made_from(profile, (), None):
            if made.script is not None:
                path = folder / SCRIPTS / profile.stem / f"{made.job}.sh"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(made.script, "utf-8")


def _point(home: Path, target: str) -> None:
    """Let the link name another folder, in one step."""
    link = home / f".{PINNED}.{secrets.token_hex(4)}"
    link.symlink_to(target)
    os.replace(link, home / PINNED)


@contextmanager
def _writing(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = error.filename or teams_folder() / name
        raise UsageError(f"cannot write {path}: {error.strerror}", "it has to be writable for you") from error


def _today() -> str:
    return dt.datetime.now(dt.timezone.utc).date().isoformat()
