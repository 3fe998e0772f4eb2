"""Files of an image: its header, the record `FILE.sif.json` beside it (source, digest, contents), and the folder of its
draft: others may replace files in the image's folder, which a team can share."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from hpc_launch.base import json_records
from hpc_launch.base.files import open_regular

CHUNK = 1 << 22
"""Bytes per read."""


class ImageRecord(Struct, frozen=True, kw_only=True):
    """An image's provenance. `source` is a recipe or URI, `made` is UTC, `versions` are the packages inside."""

    digest: str
    size: int
    source: str
    kind: str
    made: str
    architecture: str | None = None
    recipe_digest: str | None = None
    by: str = ""
    versions: dict[str, str] = {}


def record_file(image: Path) -> Path:
    """The path of an image's record."""
    return image.with_name(f"{image.name}.json")


def read_record(image: Path) -> ImageRecord | None:
    """The record beside an image; None if there is none or it cannot be read."""
    return json_records.read_record(record_file(image), ImageRecord) if image.name else None  # `/` has no name


def put(draft: Path, image: Path, record: ImageRecord) -> None:
    """Move a finished image into place atomically, and write its record. Raises OSError.

    Others may execute it if the umask lets them, but never write to it: the jobs of this user run what is in it.
    The old record is removed first: an image with another image's record would look tampered with.
    """
    record_file(image).unlink(missing_ok=True)
    mask = os.umask(0o077)
    os.umask(mask)
    draft.chmod(0o755 & ~mask)
    draft.replace(image)
    json_records.write_record(record_file(image), record)


def digest_of(path: Path) -> str:
    """`sha256:…` of a file. Raises OSError."""
    hasher = hashlib.sha256()
    with open_regular(path) as stream:
        while chunk := stream.read(CHUNK):
            hasher.update(chunk)
    return f"sha256:{hasher.hexdigest()}"


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
    folder = DraftFolder(path, Path(f"/proc/self/fd/{descriptor}"))
    try:
        _clear(folder)
        yield folder
    finally:
        _clear(folder)
        os.close(descriptor)
        with suppress(OSError):
            path.rmdir()


def _opened(path: Path) -> int:
    """The descriptor of a folder that only this user can use. Raises OSError for any other."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077:
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, "another user can change the folder of the draft", str(path))


def _clear(folder: DraftFolder) -> None:
    """Remove what is neither the partial download nor the answer of its server."""
    for path in list(folder.own.iterdir()):
        if path.name.partition(".")[0] != PART:
            if os.path.isdir(path) and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


SIF_MAGIC = b"SIF_MAGIC\0"
SIF_MAGIC_AT = 32
SIF_ARCH_AT = 45
SIF_ARCHITECTURES = {
    b"01": "i386",
    b"02": "x86_64",
    b"03": "arm",
    b"04": "aarch64",
    b"05": "ppc64",
    b"06": "ppc64le",
    b"11": "s390x",
    b"12": "riscv64",
    b"13": "loongarch64",
}
SIF_DATA_AT = 112
"""The global header of a SIF file: 32 bytes for the first line, 10 for the magic, 3 for the version, the architecture
as two digits and a zero, an id, and eight numbers, the last two of which are the offset and size of the data
(github.com/apptainer/sif, pkg/sif/sif.go `header` and arch.go, e306d8b)."""


def architecture(image: Path) -> str | None:
    """The architecture of a SIF file, as in `uname -m`; None if unknown. Raises OSError if it cannot be read."""
    head = b"" if os.path.isdir(image) else _head(image)
    return SIF_ARCHITECTURES.get(head[SIF_ARCH_AT : SIF_ARCH_AT + 2]) if is_sif(head) else None


def cut_short(image: Path) -> bool:
    """Whether a SIF file is shorter than its header says: after a truncated download or a full disk."""
    head = _head(image)
    if not is_sif(head) or len(head) < SIF_DATA_AT + 16:
        return is_sif(head)
    offset, size = struct.unpack_from("<qq", head, SIF_DATA_AT)
    return image.stat().st_size < int(offset) + int(size)


def _head(image: Path) -> bytes:
    with open_regular(image) as stream:
        return stream.read(SIF_DATA_AT + 16)


def is_sif(head: bytes) -> bool:
    """Whether a file that starts with `head` is a SIF image."""
    return head[SIF_MAGIC_AT : SIF_MAGIC_AT + len(SIF_MAGIC)] == SIF_MAGIC
