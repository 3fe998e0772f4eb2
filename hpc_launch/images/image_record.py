"""The record `FILE.sif.json` beside an image: its source, digest and contents."""

from __future__ import annotations

import hashlib
import os
import time
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


def now() -> str:
    """The current UTC time in the format of a record."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
