"""Add, update and remove a team's profiles, a copy of a repository's commit or a shared folder; trust single files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import asdict

from hpc_launch.base.errors import UsageError
from hpc_launch.base.files import make_private, read_text, write_json
from hpc_launch.base.findings import Finding
from hpc_launch.base.run_program import run_program
from hpc_launch.job.yaml_source import MAX_BYTES, read_document
from hpc_launch.sites import trust
from hpc_launch.sites.layers import parse_layer
from hpc_launch.sites.search_path import BASES, ENDING, RECORD, Team, find_team, teams_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
GIT_TIMEOUT_S = 300
GIT_ENVIRONMENT = {"GIT_ALLOW_PROTOCOL": "file:https:ssh", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
"""Protocols that git may use, even after a redirect, and no prompt for a password (git(1))."""


def add(source: str, revision: str | None, trusted: str | None, name: str | None) -> Team:
    """Add a repository at a revision, or a folder. Raises UsageError if it is not available."""
    is_folder = os.path.isdir(source) and revision is None
    team_name = name or re.sub(r"(\.git)?/*\Z", "", source).rsplit("/", 1)[-1].rsplit(":", 1)[-1]
    if not _NAME.match(team_name):
        raise UsageError(f"{team_name!r} is not a valid team name", "specify one with --name")
    if re.match(r"https?://[^/@]+@", source):
        raise UsageError("the repository address must not contain credentials", "use git's credential helper or ssh")
    path = os.path.abspath(source)
    url = path if is_folder else f"file://{path}" if os.path.isdir(source) else source
    existing = find_team(team_name)
    if existing is not None and existing.url != url:
        hint = f"use another --name, or run `hpc-launch sites remove {team_name}`"
        raise UsageError(f"`{team_name}` already points to {existing.url}", hint)
    if is_folder:
        if trusted is not None:
            hint = "trust single files: `hpc-launch sites add FILE --trust DIGEST`"
            raise UsageError("a folder cannot be trusted, because its content may change at any time", hint)
        team = Team(team_name, url)
        with _report_write_errors(team_name):
            write_json(make_private(teams_folder() / team_name) / RECORD, asdict(team))
        return team
    if revision is None:
        raise UsageError("a repository requires a revision", "add --revision COMMIT, or a tag")
    return _copy(team_name, url, revision, trusted)


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
    """Copy another revision of a repository: by default the trusted commit, or what its branch or tag is now."""
    team = get_team(name)
    if team.commit is None:
        raise UsageError(f"{name} is a folder and cannot be updated", "changes in the folder take effect immediately")
    return _copy(name, team.url, revision or trusted or team.revision or team.commit, trusted)


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
        for place in (team.url, str(teams_folder() / name)):
            trust.withdraw(place)
        shutil.rmtree(teams_folder() / name)
    return team.url


def get_team(name: str) -> Team:
    """The source added under a name. Raises UsageError if there is none."""
    team = find_team(name)
    if team is None:
        raise UsageError(f"team `{name}` not found", "run `hpc-launch sites list` to show the layers")
    return team


def profiles_in(folder: Path) -> list[Path]:
    """The profiles, or rules, in a folder, without what is below it."""
    return sorted(path for path in folder.glob(f"*{ENDING}") if os.path.isfile(path))


def files_to_review(team: Team) -> Iterator[Finding]:
    """HL313 for each of a team's profiles that is not trusted and sets more than facts."""
    for path in (*profiles_in(team.folder), *profiles_in(team.folder / BASES)):
        document, _ = read_document(path)
        if document is not None and not trust.is_trusted(path, document):
            yield from trust.untrusted_keys(path, document, parse_layer(path.stem, document, []))


@contextmanager
def at_revision(url: str, revision: str) -> Iterator[tuple[str, Path]]:
    """The commit, and its profiles in a temporary folder: those in `sites/` of the repository if it exists, else those
    at the top level. Raises UsageError with git's own message."""
    with tempfile.TemporaryDirectory(prefix="hpc-launch-team-") as scratch:
        clone, profiles = os.path.join(scratch, "clone"), Path(scratch, "profiles")
        # Links become files with the name of their target.
        plain = ("-c", "core.symlinks=false", "--no-checkout", "--quiet")
        _git("clone", *plain, "--", url, clone, failure=f"cannot clone {url}")
        verify = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        failure, hint = f"the repository has no revision {revision}", "specify one of its branches, tags or commits"
        commit = _git("-C", clone, *verify, failure=failure, hint=hint).strip()
        _git("-C", clone, "checkout", "--quiet", "--detach", commit, failure=f"cannot read {commit}")
        below = Path(clone, "sites")
        shutil.copytree(below if profiles_in(below) else clone, profiles, ignore=_others)
        yield commit, profiles


def _others(folder: str, names: list[str]) -> list[str]:
    """What is not a profile, base or rule: hidden files, links, programs."""
    kept = (BASES, "rules")
    return [
        name
        for name in names
        if not _NAME.match(name)
        or not (name in kept if os.path.isdir(os.path.join(folder, name)) else name.endswith(ENDING))
    ]


def _git(*arguments: str, failure: str, hint: str | None = None) -> str:
    try:
        process = run_program(["git", *arguments], GIT_TIMEOUT_S, environment={**os.environ, **GIT_ENVIRONMENT})
    except FileNotFoundError as error:
        raise UsageError("git is not installed on this machine", "load its module, or add a folder instead") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(failure, f"git timed out after {GIT_TIMEOUT_S} s") from error
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        raise UsageError(failure, "; ".join(line.strip() for line in lines[-3:] if line.strip()) or hint)
    return process.stdout


def _copy(name: str, url: str, revision: str, trusted: str | None) -> Team:
    """Copy a commit beside the current copy, then record it, so that concurrent jobs see one of the two."""
    if trusted is not None and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", trusted) is None:
        hint = "review the profiles, then specify all 40 digits of the commit, which `sites add` prints"
        raise UsageError(f"--trust requires a full commit, not {trusted}: others can move a tag or a branch", hint)
    with at_revision(url, revision) as (commit, profiles):
        if trusted is not None and trusted != commit:
            message = f"{trusted} is not the requested revision, which is commit {commit}"
            raise UsageError(message, "review the requested revision, and trust its commit")
        if not profiles_in(profiles):
            message = f"no profile found in {url} at {revision}"
            raise UsageError(message, "put profiles at the top level or in the folder sites")
        team, existing = Team(name, url, revision, commit), find_team(name)
        with _report_write_errors(name):
            home = make_private(teams_folder() / name)
            draft = tempfile.mkdtemp(prefix=".", dir=home)
            shutil.copytree(profiles, draft, dirs_exist_ok=True)
            if os.path.isdir(team.folder):
                shutil.rmtree(draft)
            else:
                os.rename(draft, team.folder)
            paths = profiles.rglob(f"*{ENDING}")
            if trusted is not None:
                trust.trust({trust.digest(path.read_text("utf-8", "surrogateescape")) for path in paths}, name)
            elif existing is None or existing.commit != commit:
                trust.withdraw(name)  # the trust is in a commit as a whole
            write_json(home / RECORD, asdict(team))
            for other in home.iterdir():
                if other not in (team.folder, home / RECORD):
                    shutil.rmtree(other, ignore_errors=True)
    return team


@contextmanager
def _report_write_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = error.filename or teams_folder() / name
        raise UsageError(f"cannot write {path}: {error.strerror}", "make it writable") from error
