"""Download a file with curl, and resume where an interrupted download stopped."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from hpc_launch import __version__
from hpc_launch.base.errors import UserError

ATTEMPTS = 5
"""Maximum number of consecutive attempts that receive no data."""
PAUSE = 2.0
"""Seconds between attempts."""

REFUSED, NO_RANGES = 22, 33
"""Exit codes of curl(1): the server answered with an error; it sends all of the file or nothing."""
OPTIONS = """
silent
show-error
fail
location
speed-limit = 1
speed-time = 60
retry = 4
retry-delay = 2
"""


def fetch(url: str, part: Path, say: Callable[[str], None]) -> None:
    """Download `url` to `part`, in a folder that only this user can use; resume if the server still has the same file.

    Beside it, `part.HASH` holds the header of the server's answer: the name stands for the URL, and the version in it
    (ETag or Last-Modified) for the content. Raises UserError if the server refuses or the connection is interrupted
    repeatedly; OSError for the disk.
    """
    curl = shutil.which("curl")
    if curl is None:
        raise UserError("curl, which downloads images, not found", "pull the image on another machine")
    header = part.with_name(f"{part.name}.{hashlib.sha256(url.encode()).hexdigest()[:16]}")
    attempts = 0
    while True:
        version = _version(header)
        if version is None:
            part.unlink(missing_ok=True)
        before = _size(part)
        settings = [f"url = {_quoted(url)}", f"output = {part.name}", f"dump-header = {header.name}"]
        settings += [f'user-agent = "hpc-launch/{__version__}"']
        if before:
            settings += ["continue-at = -", f"header = {_quoted(f'If-Range: {version}')}"]
        # The URL may be a secret, so it is no argument. By its descriptor, the folder stays the same if it is renamed.
        done = subprocess.run(
            [curl, "--disable", "--config", "-"], input=OPTIONS + "\n".join(settings), cwd=part.parent,
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return
        reason = done.stderr.strip().rpartition("curl: ")[2] or f"curl ended with code {done.returncode}"
        if done.returncode == REFUSED:
            raise UserError(f"{url}: {reason}")
        if done.returncode == NO_RANGES:
            say("the file has changed on the server, or it does not send parts; starting over")
            header.unlink(missing_ok=True)
        attempts = 1 if _size(part) > before else attempts + 1
        if attempts >= ATTEMPTS:
            message = f"{url}: the connection was interrupted {attempts} times without receiving data: {reason}"
            raise UserError(message, f"run the same command again to resume from byte {_size(part)}")
        say(f"{reason}; resuming from byte {_size(part)}")
        time.sleep(PAUSE)


def _version(header: Path) -> str | None:
    """The last strong entity tag, or date, in the headers of an answer (RFC 9110, section 13.1.5)."""
    try:
        lines = header.read_text(encoding="latin-1").splitlines()
    except OSError:
        return None
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    tag = fields.get("etag", "")
    return tag if tag and not tag.startswith("W/") else fields.get("last-modified")


def _size(part: Path) -> int:
    return part.stat().st_size if os.path.exists(part) else 0


def _quoted(text: str) -> str:
    """A value of curl's configuration file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
