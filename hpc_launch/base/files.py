"""Atomic file writes, also on NFS, Lustre and GPFS, and bounded reads."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

LONGEST = 64 << 20
"""Maximum characters read of a file; records and scripts have thousands."""


def write_atomic(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace the content of `path` atomically: write a temporary file in the same folder, fsync it, rename it.

    The umask applies to `mode`. On OSError (full disk, missing folder) the old content is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_output(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write to a path given by the user, as the shell's `>` does: follow links, and write into devices and pipes
    instead of replacing them. Raises OSError, for a folder IsADirectoryError.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        with open(path, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        return
    write_atomic(Path(os.path.realpath(path)), text, mode=mode)


def create_once(path: Path, text: str) -> bool:
    """Create `path` with `text` unless it exists. Returns True only to the one writer that created it.

    Uses a hard link to a complete file rather than O_EXCL, so that a reader never finds it empty; link(2) is atomic on
    NFS, too (open(2), section O_EXCL). Falls back to O_EXCL if links are not supported.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    write_atomic(temporary, text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        try:
            with open(path, "x", encoding="utf-8") as stream:
                stream.write(text)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically as indented JSON."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def read_text(path: Path, *, errors: str = "strict", longest: int = LONGEST) -> str:
    """The text of a file. Raises OSError if it is not a regular file (without waiting for a pipe) or too large."""
    with open(path, encoding="utf-8", errors=errors, opener=without_waiting) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        text = stream.read(longest + 1)
    if len(text) > longest:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return text


def without_waiting(name: str, flags: int) -> int:
    """An opener that does not wait for the other end of a pipe; O_NONBLOCK has no effect on regular files."""
    return os.open(name, flags | os.O_NONBLOCK)
