"""Writing files so that a reader never sees half of one, on NFS, Lustre and GPFS as well."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

LONGEST = 64 << 20
"""Characters of the largest file that is read whole: records and scripts have thousands."""


def write_atomic(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace `path` by `text` in one step: a temporary file in the same folder, flushed to disk, then renamed.

    `mode` is cut by the umask as for any new file. Raises OSError (a full disk, a missing folder) with the old
    content of `path` untouched.
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
    """Write what a person asked for to the place that they named, as `>` would: a link is followed, and a device or a
    pipe is written to, for a rename would put a file in its place. Raises OSError, for a folder IsADirectoryError.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        with open(path, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        return
    write_atomic(Path(os.path.realpath(path)), text, mode=mode)


def create_once(path: Path, text: str) -> bool:
    """Create `path` holding `text` unless it exists: true for the one writer, ever, who made it.

    A hard link to a complete file, not O_EXCL, so that a reader never finds it empty; link(2) is atomic on NFS too
    (open(2), section O_EXCL). Where links are not supported, O_EXCL has to do.
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
    """`write_atomic` of `value` as JSON, indented for people."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def read_text(path: Path, *, errors: str = "strict", longest: int = LONGEST) -> str:
    """The text of a file. Raises OSError for what is no regular file (a pipe is not waited for) or too large."""
    with open(path, encoding="utf-8", errors=errors, opener=without_waiting) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        text = stream.read(longest + 1)
    if len(text) > longest:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return text


def without_waiting(name: str, flags: int) -> int:
    """An opener that does not wait for the other end of a pipe: for a file O_NONBLOCK means nothing."""
    return os.open(name, flags | os.O_NONBLOCK)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`; None where there is none yet, or where it is torn or no object."""
    try:
        value = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
