"""Git, asked for nothing but the files of one revision: no work tree, no hooks, no filters, no submodules.

The repository, its revisions and the names of its files are hostile: a repository is one of three protocols and never
an option, and of its tree only plain YAML files are taken.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpc_launch.base.errors import UsageError

PROTOCOLS = "file:https:ssh"
"""What git may use, for what it is redirected to as well (`GIT_ALLOW_PROTOCOL`, git(1))."""
SECONDS = 300
MOST_FILES, MOST_BYTES = 2000, 1 << 20
_URL = re.compile(r"(https|ssh|file)://[^\s\x00-\x1f]+\Z")
_SCP = re.compile(r"([A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9][\w.-]*:(?!/?/)[^\s:\x00-\x1f-][^\s\x00-\x1f]*\Z")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}\Z")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")


def repository(text: str) -> str:
    """A repository's address as git may have it. Raises UsageError for another protocol, an option, a login in it."""
    if re.match(r"https?://[^/@]*:[^/@]*@", text) or re.match(r"https?://[^/@]+@", text):
        raise UsageError(
            "a repository's address must not hold a login", "let git ask its credential helper, or use ssh"
        )
    if _URL.match(text) and not re.match(r"\w+://-", text):
        return text
    if os.path.isdir(text):
        return f"file://{os.path.abspath(text)}"
    if _SCP.match(text) and "::" not in text:
        return text
    hint = "https://HOST/PATH, ssh://HOST/PATH, USER@HOST:PATH, or a folder"
    raise UsageError(f"{text} is no repository that can be taken", hint)


def revision(text: str) -> str:
    """A branch, a tag or a commit. Raises UsageError for what git could read as something else."""
    if not _REVISION.match(text) or ".." in text:
        raise UsageError(f"{text} is no revision", "name a commit, a tag or a branch")
    return text


def clone(url: str, into: Path) -> None:
    """A bare copy of the repository in a new folder. Raises UsageError with git's own words where there is none."""
    _git("clone", "--quiet", "--bare", "--template=", "--", url, str(into), what=f"{url} cannot be cloned")


def commit_of(folder: Path, asked: str) -> str:
    """The full name of the commit that a revision means. Raises UsageError where there is none."""
    what = f"the repository has no revision {asked}"
    named = f"{asked}^{{commit}}"
    hint = "name one of its branches, its tags or its commits"
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", named)
    return _git(f"--git-dir={folder}", *words, what=what, hint=hint).strip()


def yaml_files(folder: Path, commit: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(path, text) of each plain YAML file of a commit: no link, nothing hidden, no odd character in its name.

    Raises UsageError for more or larger files than profiles are.
    """
    listed = _git(f"--git-dir={folder}", "ls-tree", "-r", "-z", "-l", "--full-tree", commit, what="no such commit")
    count = 0
    for entry in listed.split("\0"):
        about, _, name = entry.partition("\t")
        parts = tuple(name.split("/"))
        mode, _, blob, size = (about.split() + [""] * 4)[:4]
        if mode not in ("100644", "100755") or not name.endswith(".yaml") or not all(map(_NAME.match, parts)):
            continue
        count += 1
        if count > MOST_FILES or not size.isdigit() or int(size) > MOST_BYTES:
            limit = f"{MOST_FILES} files of {MOST_BYTES >> 10} KiB"
            raise UsageError(
                f"{name} is too much: profiles are no more than {limit}", "keep profiles in a repository of their own"
            )
        yield parts, _git(f"--git-dir={folder}", "cat-file", "blob", blob, what=f"{name} cannot be read")


def _git(*words: str, what: str, hint: str | None = None) -> str:
    safe = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "submodule.recurse=false")
    try:
        ran = subprocess.run(
            ["git", *safe, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
            env=_environment(os.environ),
        )
    except FileNotFoundError as error:
        raise UsageError("there is no git on this machine", "load its module, or add a folder of profiles") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(what, f"git took longer than {SECONDS} s") from error
    if ran.returncode:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(what, "; ".join(line.strip() for line in said[-3:]) or hint)
    return ran.stdout.decode("utf-8", "surrogateescape")


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """The user's, so that ssh and proxies work; without what points git elsewhere; no password is asked for."""
    kept = {
        key: value for key, value in own.items() if not re.match(r"GIT_(DIR|WORK_TREE|INDEX|OBJECT|ALT|NAMESPACE)", key)
    }
    return kept | {"GIT_ALLOW_PROTOCOL": PROTOCOLS, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
