"""A folder beside an image for its draft: others may replace files in the image's folder, which a team can share."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PART = "part"
"""A partial download, which a later pull resumes."""


@dataclass(frozen=True)
class DraftFolder:
    """A folder that only this user can use. Files move from it to the image's place by a rename."""

    path: Path
    """Its name, for other programs."""
    own: Path
    """The same folder by its descriptor, which stays valid if others rename it. This process uses only this path."""

    @property
    def part(self) -> Path:
        """The partial download, with the server's answer in `part.HASH`."""
        return self.own / PART


@contextmanager
def draft_folder(image: Path) -> Iterator[DraftFolder]:
    """Make the folder, or open the one that an interrupted pull left; only a partial download remains in it afterwards.

    The caller holds the lock of `image`. Raises OSError.
    """
    path = image.with_name(f".{image.name}.{os.getuid()}.{PART}")
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    descriptor = _opened(path)
    if descriptor is None:  # somebody else made it
        path = Path(tempfile.mkdtemp(prefix=f".{image.name}.", suffix=f".{PART}", dir=image.parent))
        descriptor = _opened(path)
        if descriptor is None:
            raise PermissionError(errno.EPERM, "another user can change the folder of the draft", str(path))
    folder = DraftFolder(path, Path(f"/proc/self/fd/{descriptor}"))
    try:
        _clear(folder)
        yield folder
    finally:
        _clear(folder)
        os.close(descriptor)
        with suppress(OSError):
            path.rmdir()


def _opened(path: Path) -> int | None:
    """The descriptor of a folder that only this user can use; None for any other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077:
        return descriptor
    os.close(descriptor)
    return None


def _clear(folder: DraftFolder) -> None:
    """Remove what is neither the partial download nor the answer of its server."""
    for path in list(folder.own.iterdir()):
        if path.name.partition(".")[0] != PART:
            if os.path.isdir(path) and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
