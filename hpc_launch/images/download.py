"""A file over HTTP that goes on where it was cut: `FILE.part` holds what came, `FILE.part.json` what it is of."""

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

from hpc_launch import __version__
from hpc_launch.base.errors import UserError
from hpc_launch.base.files import read_json, write_json

TRIES = 5
"""How often a connection that was cut is made anew, as long as each brings something."""

PAUSE = 2.0
"""Seconds before the next try."""

TIMEOUT = 60.0
"""Seconds without a byte after which a connection counts as cut."""

CHUNK = 1 << 20
LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be others a moment later (RFC 9110, section 15)."""


class _Cut(Exception):
    """The connection ended early; what came so far is kept."""


def fetch(url: str, part: Path, say: Callable[[str], None], *, pause: float = PAUSE) -> None:
    """Bring `url` into `part`, going on with what is there if the server still has the same file.

    Several processes may do so at once, as when one is taken for dead: each writes the same bytes at the same places.
    Raises UserError where the server refuses, or the connection is cut again and again; OSError for the disk.
    """
    tries = 0
    while True:
        before = _have(part)
        try:
            _once(url, part, say)
            return
        except _Cut as cut:
            have = _have(part)
            tries = 1 if have > before else tries + 1
            if tries >= TRIES:
                message = f"{url}: the connection was cut {tries} times without a byte: {cut}"
                raise UserError(message, f"{have} bytes are kept; the same command goes on from there") from cut
            say(f"{url}: {cut}; going on from byte {have}")
            time.sleep(pause)


def _once(url: str, part: Path, say: Callable[[str], None]) -> None:
    note = part.with_name(f"{part.name}.json")
    held, known = _have(part), read_json(note) or {}
    headers = {"User-Agent": f"hpc-launch/{__version__}", "Accept-Encoding": "identity"}
    mark = str(known.get("mark") or "")
    if held and known.get("url") == _named(url) and mark:
        # If-Range: the server sends the rest if the file is still the same, else all of it (RFC 9110, section 13.1.5).
        headers |= {"Range": f"bytes={held}-", "If-Range": mark}
    else:
        held = 0
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and held and _length_of(error.headers.get("Content-Range")) == held:
                return
            if error.code in LATER:
                raise _Cut(f"the server says {error.code} {error.reason}") from error
            raise UserError(f"{url}: the server says {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Cut(str(getattr(error, "reason", error))) from error
    with answer:
        goes_on = answer.status == 206 and _first_of(answer.headers.get("Content-Range")) == held
        if held and not goes_on:
            say(f"{url}: the file is another one by now; starting over")
        at = held if goes_on else 0
        if not goes_on:
            # A new file, not the old one emptied: another process may still be writing to that.
            part.unlink(missing_ok=True)
            write_json(note, {"url": _named(url), "mark": _mark(answer.headers)})
        length = answer.headers.get("Content-Length")
        whole = at + int(length) if length is not None and length.isdigit() else None
        _take(answer, part, at, whole, say)


def _take(answer: Any, part: Path, at: int, whole: int | None, say: Callable[[str], None]) -> None:
    told = time.monotonic()
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT, 0o666)
    with os.fdopen(descriptor, "wb") as stream:
        stream.seek(at)
        while True:
            try:
                chunk = answer.read1(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                stream.flush()
                raise _Cut(str(error) or type(error).__name__) from error
            if not chunk:
                break
            stream.write(chunk)
            at += len(chunk)
            if time.monotonic() - told > 5:
                told = time.monotonic()
                say(f"{at >> 20} of {whole >> 20} MiB" if whole else f"{at >> 20} MiB")
        stream.flush()
        os.fsync(stream.fileno())
    if whole is not None and at < whole:
        raise _Cut(f"{at} of {whole} bytes came")


def _named(url: str) -> str:
    """The address without saying it: a signed one is a secret."""
    return hashlib.sha256(url.encode()).hexdigest()


def _have(part: Path) -> int:
    try:
        return part.stat().st_size
    except OSError:
        return 0


def _mark(headers: Any) -> str:
    """What tells this file from a later one: a strong entity tag, or the date (RFC 9110, section 13.1.5)."""
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
