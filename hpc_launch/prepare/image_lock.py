"""Lock an image file across hosts. flock is not used, because not every shared file system supports it.

`.FILE.lock` is created exclusively, names its holder, and is touched every few seconds. Another process takes it over
if the holder has certainly exited or has not touched the file for a while. To take over, a process first creates
another file exclusively, so that only one of several waiting processes succeeds.
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
from hpc_launch.runs.node_health_store import owner
from hpc_launch.runs.records.process_identity import ProcessRecord, certainly_gone, process_fields, this_process

LONGEST_WAIT_S = 3600.0
"""How long the lock of another user is waited for: they can keep it for ever."""

TOUCH_INTERVAL_S = 10.0
"""Time between two updates of the lock file by its holder."""

STALE_AFTER_S = 180.0
"""Time without an update, on the clock of the waiting process, after which a lock is stale. NFS may show modification
times up to a minute late (nfs(5), acregmax)."""


class _Lock(ProcessRecord, frozen=True, kw_only=True):
    """The content of a lock file: the process that holds it, and a unique token."""

    token: str | None = None


@contextmanager
def lock_image(
    image: Path,
    report: Callable[[str], None],
    *,
    poll: float = 1.0,
    stale_after: float = STALE_AFTER_S,
    longest: float = LONGEST_WAIT_S,
) -> Iterator[None]:
    """Hold the lock of an image. Waits for another holder and reports it once a minute. Raises UserError, OSError."""
    lock, token = image.with_name(f".{image.name}.lock"), secrets.token_hex(8)
    _acquire(lock, token, image, report, poll=poll, stale_after=stale_after, longest=longest)
    done = threading.Event()
    heartbeat = threading.Thread(target=_touch, args=(lock, token, done), daemon=True)
    heartbeat.start()
    try:
        yield
    finally:
        done.set()
        heartbeat.join()
        if _token(lock) == token:
            lock.unlink(missing_ok=True)


def _acquire(
    lock: Path,
    token: str,
    image: Path,
    report: Callable[[str], None],
    *,
    poll: float,
    stale_after: float,
    longest: float,
) -> None:
    own = _Lock(token=token, **process_fields(this_process()))
    last_version: tuple[str | None, int] | None = None
    changed_at = reported_at = 0.0
    began = time.monotonic()
    while True:
        try:
            if create_record(lock, own):
                return
        except OSError as error:
            message = f"cannot write to {lock.parent}: {error.strerror}"
            raise UserError(message, "name another file with -o") from error
        holder, now = _token(lock), time.monotonic()
        try:
            status = lock.lstat()
            version = (holder, status.st_mtime_ns)
        except OSError:
            time.sleep(poll)
            continue  # just released
        if version != last_version:
            last_version, changed_at = version, now
        foreign = status.st_uid != os.getuid()
        record = read_record(lock, _Lock)
        process = record.process if record is not None else None
        # A lock that nobody can read is stale after the same time.
        stale = now - changed_at > stale_after or (process is not None and certainly_gone(process))
        if (foreign or stale) and now - began > longest:
            message = f"{owner(lock)} has kept {lock} for {longest / 60:.0f} minutes"
            raise UserError(message, f"have {lock}* removed, or name another image with -o")
        if stale and _take_over(lock, holder, report):
            continue
        if now - reported_at > 60 or not reported_at:
            whose = f" of {owner(lock)}" if foreign else ""
            report(f"waiting: {process or 'another process'}{whose} is writing {image}")
            reported_at = now
        time.sleep(poll)


def _take_over(lock: Path, holder: str | None, report: Callable[[str], None]) -> bool:
    """Remove a stale lock, unless another process is at it: False."""
    takeover = lock.with_name(f"{lock.name}.{holder or 'unreadable'}")
    if create_once(takeover, ""):
        report("the lock is stale; taking it over")
        if _token(lock) == holder:
            lock.unlink(missing_ok=True)
        takeover.unlink(missing_ok=True)
        return True
    # The process that created the takeover file may have exited before using it.
    with suppress(OSError):
        if time.time() - takeover.stat().st_mtime > STALE_AFTER_S:
            takeover.unlink(missing_ok=True)
    return False


def _touch(lock: Path, token: str, done: threading.Event) -> None:
    while not done.wait(TOUCH_INTERVAL_S):
        with suppress(OSError):
            if _token(lock) == token:
                os.utime(lock)


def _token(lock: Path) -> str | None:
    record = read_record(lock, _Lock)
    return record.token if record is not None and record.token and record.token.isalnum() else None
