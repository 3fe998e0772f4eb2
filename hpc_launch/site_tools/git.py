"""Read the YAML files of one git revision with the user's own git, without checking it out."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

from hpc_launch.base.errors import UsageError

TIMEOUT_S = 300
ENVIRONMENT = {"GIT_ALLOW_PROTOCOL": "file:https:ssh", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
"""Protocols that git may use, even after a redirect, and no prompt for a password (git(1))."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")


def repository_url(text: str) -> str:
    """Address of a repository, or of a folder. Raises UsageError if it contains credentials, which are recorded."""
    if re.match(r"https?://[^/@]+@", text):
        raise UsageError("the repository address must not contain credentials", "use git's credential helper or ssh")
    return f"file://{os.path.abspath(text)}" if os.path.isdir(text) else text


def is_commit(text: str) -> bool:
    """Whether this is the full hash of a commit, by SHA-1 or SHA-256. Nothing else stays what it was at a review."""
    return re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) is not None


def yaml_files(url: str, revision: str) -> tuple[str, dict[tuple[str, ...], str]]:
    """The commit of a revision, and the text of each YAML file in it by its path: no links and no hidden files.

    Raises UsageError with git's own message.
    """
    with tempfile.TemporaryDirectory(prefix="hpc-launch-git-") as scratch:
        _git("clone", "--quiet", "--bare", "--", url, scratch, failure=f"cannot clone {url}")
        verify = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        failure, hint = f"the repository has no revision {revision}", "specify one of its branches, tags or commits"
        commit = _git(f"--git-dir={scratch}", *verify, failure=failure, hint=hint).decode().strip()
        archive = _git(f"--git-dir={scratch}", "archive", "--format=tar", commit, failure=f"cannot read {commit}")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            parts = Path(member.name).parts
            content = tar.extractfile(member) if member.isreg() and all(map(_NAME.match, parts)) else None
            if content is not None and member.name.endswith(".yaml"):
                files[parts] = content.read().decode("utf-8", "surrogateescape")
    return commit, files


def _git(*arguments: str, failure: str, hint: str | None = None) -> bytes:
    try:
        process = subprocess.run(
            ["git", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, **ENVIRONMENT},
        )
    except FileNotFoundError as error:
        raise UsageError("git is not installed on this machine", "load its module, or add a folder instead") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(failure, f"git timed out after {TIMEOUT_S} s") from error
    if process.returncode:
        lines = process.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(failure, "; ".join(line.strip() for line in lines[-3:] if line.strip()) or hint)
    return process.stdout
