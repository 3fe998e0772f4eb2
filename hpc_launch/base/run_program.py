"""Run another program to its end, and read what it prints; of git, the files of a work tree and the commit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def run_program(
    command: Sequence[str], timeout_s: float | None, *, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it without a terminal and without input. Raises OSError if it cannot be started, and TimeoutExpired."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        timeout=timeout_s,
        check=False,
    )


GIT_S = 5.0


def commit_of(root: Path) -> str | None:
    """The commit checked out there; None where that is not known."""
    return git_output(root, "rev-parse", "--verify", "--quiet", "HEAD") or None


def not_ignored(root: Path) -> frozenset[str] | None:
    """The files of a work tree that git does not ignore, with the folders above; None where git names none."""
    if not os.path.lexists(root / ".git"):
        return None
    files: set[str] = set()
    for which in (("--cached", "--recurse-submodules"), ("--others", "--exclude-standard")):
        answer = git_output(root, "ls-files", "-z", *which)
        if answer is None:
            return None
        files.update(name.rstrip("/") for name in answer.split("\0") if name)
    return frozenset(files | {str(above) for name in files for above in Path(name).parents})


def git_output(root: Path, *words: str) -> str | None:
    """What git prints without running what the repository configures; None where it fails."""
    command = ("git", "-C", str(root), "-c", "core.fsmonitor=false", *words)
    offline = {**os.environ, "GIT_ALLOW_PROTOCOL": "none"}  # git fetches what it misses, by a program of the repository
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, timeout=GIT_S, check=True, env=offline)
        return os.fsdecode(done.stdout).strip("\n")
    return None
