"""One process at a time for an image, whichever host it is on: locks of the file system do not hold on every one.

`FILE.lock` is created once, says who holds it, and is touched every few seconds. It is taken over where its holder is
certainly gone, or has not touched it for a while. The right to take over a lock is itself a file that is created once,
so that two who wait do not both take it.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpc_launch.base.errors import UserError
from hpc_launch.base.files import create_once
from hpc_launch.base.json_records import create_record, read_record
from hpc_launch.run.records.process_identity import ProcessRecord, certainly_gone, process_fields, this_process

TOUCHED_EVERY = 10.0
"""Seconds between two signs of life of a holder."""

DEAD_AFTER = 180.0
"""Seconds without one, by the clock of the one who waits, after which the holder counts as gone. NFS may show a time
that is a minute old (nfs(5), acregmax)."""


class _Lock(ProcessRecord, frozen=True, kw_only=True):
    """The content of a lock file: the process that holds it, and a token that tells it from later locks."""

    token: str | None = None


@contextmanager
def lock_image(
    image: Path, say: Callable[[str], None], *, poll: float = 1.0, dead_after: float = DEAD_AFTER
) -> Iterator[None]:
    """Hold the lock of an image; waits for whoever has it, saying so once a minute. Raises UserError, OSError."""
    lock, token = image.with_name(f".{image.name}.lock"), secrets.token_hex(8)
    _acquire(lock, token, image, say, poll=poll, dead_after=dead_after)
    over = threading.Event()
    beat = threading.Thread(target=_touch, args=(lock, token, over), daemon=True)
    beat.start()
    try:
        yield
    finally:
        over.set()
        beat.join()
        if _token(lock) == token:
            lock.unlink(missing_ok=True)


def _acquire(
    lock: Path, token: str, image: Path, say: Callable[[str], None], *, poll: float, dead_after: float
) -> None:
    mine = _Lock(token=token, **process_fields(this_process()))
    seen: tuple[str | None, int] | None = None
    since = told = 0.0
    while True:
        try:
            if create_record(lock, mine):
                return
        except OSError as error:
            raise UserError(
                f"cannot write to {lock.parent}: {error.strerror}", "choose another place with -o"
            ) from error
        holder, now = _token(lock), time.monotonic()
        with suppress(OSError):
            sign = (holder, lock.stat().st_mtime_ns)
            if sign != seen:
                seen, since = sign, now
        record = read_record(lock, _Lock)
        who = record.process if record is not None else None
        if holder is not None and (now - since > dead_after or (who is not None and certainly_gone(who))):
            _take_over(lock, holder, say)
            continue
        if now - told > 60 or not told:
            say(f"{image} is being made by {who or 'somebody'}; waiting for that")
            told = now
        time.sleep(poll)


def _take_over(lock: Path, holder: str, say: Callable[[str], None]) -> None:
    right = lock.with_name(f"{lock.name}.{holder}")
    if create_once(right, ""):
        say("whoever was at it is gone; going on")
        if _token(lock) == holder:
            lock.unlink(missing_ok=True)
        right.unlink(missing_ok=True)
    else:
        time.sleep(0.5)
        # Who had the right may have ended before using it.
        with suppress(OSError):
            if time.time() - right.stat().st_mtime > DEAD_AFTER:
                right.unlink(missing_ok=True)


def _touch(lock: Path, token: str, over: threading.Event) -> None:
    while not over.wait(TOUCHED_EVERY):
        with suppress(OSError):
            if _token(lock) == token:
                os.utime(lock)


def _token(lock: Path) -> str | None:
    record = read_record(lock, _Lock)
    return record.token if record is not None and record.token and record.token.isalnum() else None
