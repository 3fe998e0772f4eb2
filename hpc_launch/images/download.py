"""Resumable HTTP download: `FILE.part` holds the received bytes, `FILE.part.json` identifies the source."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch import __version__
from hpc_launch.base.errors import UserError
from hpc_launch.base.json_records import read_record, write_record

MAX_ATTEMPTS = 5
"""Maximum number of consecutive attempts that receive no data."""

PAUSE = 2.0
"""Seconds between attempts."""

TIMEOUT = 60.0
"""Seconds without data after which a connection counts as interrupted."""

CHUNK = 1 << 20
LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Temporary HTTP status codes (RFC 9110, section 15)."""


class DownloadSource(Struct, frozen=True, kw_only=True):
    """The record beside a partial download: its source and version."""

    url: str = ""
    """A digest of the URL."""
    mark: str = ""
    """The server's validator: ETag or Last-Modified."""


class _Interrupted(Exception):
    """The connection ended early; received bytes are kept."""


def fetch(url: str, part: Path, say: Callable[[str], None]) -> None:
    """Download `url` to `part`, resuming if the server still has the same file.

    Several processes may do so at once, e.g. if one is wrongly considered dead: each writes the same bytes at the same
    offsets. Raises UserError if the server refuses or the connection is interrupted repeatedly; OSError for the disk.
    """
    attempts = 0
    while True:
        before = _received(part)
        try:
            _download(url, part, say)
            return
        except _Interrupted as interruption:
            received = _received(part)
            attempts = 1 if received > before else attempts + 1
            if attempts >= MAX_ATTEMPTS:
                message = (
                    f"{url}: the connection was interrupted {attempts} times without receiving data: {interruption}"
                )
                raise UserError(message, f"run the same command again to resume from byte {received}") from interruption
            say(f"{url}: {interruption}; resuming from byte {received}")
            time.sleep(PAUSE)


def _download(url: str, part: Path, say: Callable[[str], None]) -> None:
    source_file = part.with_name(f"{part.name}.json")
    offset, saved = _received(part), read_record(source_file, DownloadSource) or DownloadSource()
    headers = {"User-Agent": f"hpc-launch/{__version__}", "Accept-Encoding": "identity"}
    validator = saved.mark
    if offset and saved.url == _url_digest(url) and validator:
        # If-Range: the server sends the rest if the file is unchanged, else all of it (RFC 9110, section 13.1.5).
        headers |= {"Range": f"bytes={offset}-", "If-Range": validator}
    else:
        offset = 0
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and offset and _length_of(error.headers.get("Content-Range")) == offset:
                return
            if error.code in LATER:
                raise _Interrupted(f"HTTP {error.code} {error.reason}") from error
            raise UserError(f"{url}: HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(getattr(error, "reason", error))) from error
    with answer:
        resumes = answer.status == 206 and _first_of(answer.headers.get("Content-Range")) == offset
        if offset and not resumes:
            say(f"{url}: the file has changed on the server; starting over")
        at = offset if resumes else 0
        if not resumes:
            # Unlink instead of truncating: another process may still be writing to the old file.
            part.unlink(missing_ok=True)
            write_record(source_file, DownloadSource(url=_url_digest(url), mark=_validator(answer.headers)))
        length = answer.headers.get("Content-Length")
        whole = at + int(length) if length is not None and length.isdigit() else None
        _receive(answer, part, at, whole, say)


def _receive(answer: Any, part: Path, at: int, whole: int | None, say: Callable[[str], None]) -> None:
    notified = time.monotonic()
    # A teammate who can write to the folder may have put a link there, to a file of this user.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "wb") as stream:
        stream.seek(at)
        while True:
            try:
                chunk = answer.read1(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                stream.flush()
                raise _Interrupted(str(error) or type(error).__name__) from error
            if not chunk:
                break
            stream.write(chunk)
            at += len(chunk)
            if time.monotonic() - notified > 5:
                notified = time.monotonic()
                say(f"{at >> 20} of {whole >> 20} MiB" if whole else f"{at >> 20} MiB")
        stream.flush()
        os.fsync(stream.fileno())
    if whole is not None and at < whole:
        raise _Interrupted(f"received {at} of {whole} bytes")


def _url_digest(url: str) -> str:
    """A digest of the URL: a signed URL is a secret."""
    return hashlib.sha256(url.encode()).hexdigest()


def _received(part: Path) -> int:
    try:
        return part.lstat().st_size if not part.is_symlink() else 0
    except OSError:
        return 0


def _validator(headers: Any) -> str:
    """The validator of this version of the file: a strong entity tag, or the date (RFC 9110, section 13.1.5)."""
    tag = headers.get("ETag") or ""
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified") or ""


def _first_of(content_range: str | None) -> int | None:
    """N of `bytes N-M/L`."""
    first = (content_range or "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else None


def _length_of(content_range: str | None) -> int | None:
    """L of `bytes */L`."""
    length = (content_range or "").rpartition("/")[2]
    return int(length) if length.isdigit() else None
