"""Read the files of one git revision, without work tree, hooks, filters or submodules.

The repository, its revisions and its file names are hostile: a repository must use one of three protocols and is never
passed as an option, and only plain YAML files of its tree are read.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpc_launch.base.errors import UsageError

PROTOCOLS = "file:https:ssh"
"""Protocols that git may use, even after a redirect (`GIT_ALLOW_PROTOCOL`, git(1))."""
TIMEOUT_S = 300
MAX_FILES, MAX_BYTES_PER_FILE = 2000, 1 << 20
_URL = re.compile(r"(https|ssh|file)://[^\s\x00-\x1f]+\Z")
_SCP = re.compile(r"([A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9][\w.-]*:(?!/?/)[^\s:\x00-\x1f-][^\s\x00-\x1f]*\Z")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}\Z")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")


def repository(text: str) -> str:
    """Validate a repository address. Raises UsageError for another protocol, an option or credentials."""
    if re.match(r"https?://[^/@]*:[^/@]*@", text) or re.match(r"https?://[^/@]+@", text):
        raise UsageError("the repository address must not contain credentials", "use git's credential helper or ssh")
    if _URL.match(text) and not re.match(r"\w+://-", text):
        return text
    if os.path.isdir(text):
        return f"file://{os.path.abspath(text)}"
    if _SCP.match(text) and "::" not in text:
        return text
    if text.startswith(("/", ".", "~")):
        raise UsageError(f"folder {text} not found", "check the path")
    hint = "use https://HOST/PATH, ssh://HOST/PATH, USER@HOST:PATH, or a folder"
    raise UsageError(f"{text} is not a supported repository address", hint)


def revision(text: str) -> str:
    """Validate a branch, tag or commit. Raises UsageError for text that git could interpret differently."""
    if not _REVISION.match(text) or ".." in text:
        raise UsageError(f"{text} is not a valid revision", "specify a commit, a tag or a branch")
    return text


def is_commit(text: str) -> bool:
    """Whether this is the full hash of a commit, by SHA-1 or SHA-256. Nothing else stays what it was at a review."""
    return re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) is not None


def clone(url: str, into: Path) -> None:
    """Clone the repository into a new bare folder. Raises UsageError with git's own message."""
    _git("clone", "--quiet", "--bare", "--template=", "--", url, str(into), failure=f"cannot clone {url}")


def commit_of(folder: Path, revision_name: str) -> str:
    """Full hash of the commit that a revision refers to. Raises UsageError if there is none."""
    failure = f"the repository has no revision {revision_name}"
    if not is_commit(revision_name) and re.fullmatch(r"[0-9a-fA-F]{4,}", revision_name):
        # git prefers the tag or branch of that name to the commit that its digits abbreviate.
        references = _git(f"--git-dir={folder}", "for-each-ref", "--format=%(refname)", failure=failure)
        if {f"refs/tags/{revision_name}", f"refs/heads/{revision_name}"} & set(references.splitlines()):
            message = f"{revision_name} is a tag or branch whose name looks like a commit"
            raise UsageError(message, "specify all 40 digits of the commit")
    object_name = f"{revision_name}^{{commit}}"
    hint = "specify one of its branches, tags or commits"
    arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", object_name)
    return _git(f"--git-dir={folder}", *arguments, failure=failure, hint=hint).strip()


def yaml_files(folder: Path, commit: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(path, text) of each plain YAML file of a commit: no links, hidden files or unusual names.

    Raises UsageError for too many or too large files.
    """
    listing = _git(f"--git-dir={folder}", "ls-tree", "-r", "-z", "-l", "--full-tree", commit, failure="no such commit")
    count = 0
    for entry in listing.split("\0"):
        attributes, _, name = entry.partition("\t")
        parts = tuple(name.split("/"))
        mode, _, blob, size = (attributes.split() + [""] * 4)[:4]
        if mode not in ("100644", "100755") or not name.endswith(".yaml") or not all(map(_NAME.match, parts)):
            continue
        count += 1
        if count > MAX_FILES or not size.isdigit() or int(size) > MAX_BYTES_PER_FILE:
            limit = f"{MAX_FILES} files of {MAX_BYTES_PER_FILE >> 10} KiB"
            raise UsageError(f"{name} exceeds the limit of {limit}", "keep profiles in a separate repository")
        yield parts, _git(f"--git-dir={folder}", "cat-file", "blob", blob, failure=f"cannot read {name}")


def _git(*arguments: str, failure: str, hint: str | None = None) -> str:
    options = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "submodule.recurse=false")
    try:
        process = subprocess.run(
            ["git", *options, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=_environment(os.environ),
        )
    except FileNotFoundError as error:
        raise UsageError("git is not installed on this machine", "load its module, or add a folder instead") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(failure, f"git timed out after {TIMEOUT_S} s") from error
    if process.returncode:
        stderr_lines = process.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(failure, "; ".join(line.strip() for line in stderr_lines[-3:] if line.strip()) or hint)
    return process.stdout.decode("utf-8", "surrogateescape")


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The user's environment, so that ssh and proxies work, without variables that redirect git, and without password
    prompts."""
    environment = {
        key: value
        for key, value in inherited.items()
        if not re.match(r"GIT_(DIR|WORK_TREE|INDEX|OBJECT|ALT|NAMESPACE)", key)
    }
    return environment | {
        "GIT_ALLOW_PROTOCOL": PROTOCOLS,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "LC_ALL": "C",
    }
