"""`FILE.sif.json` beside an image: what it is, where it came from, and what it must come to."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from msgspec import Struct, ValidationError, convert, to_builtins

from hpc_launch.base.files import read_json, write_json

CHUNK = 1 << 22
"""Bytes that are read at once."""


class ImageRecord(Struct, frozen=True, kw_only=True):
    """What is known of an image. `source` is a recipe or a URI; `made` is UTC; `versions` are of what is inside."""

    digest: str
    size: int
    source: str
    kind: str
    made: str
    architecture: str | None = None
    recipe_digest: str | None = None
    by: str = ""
    versions: dict[str, str] = {}

    def as_json(self) -> dict[str, object]:
        """The object in the file, and of `--json`."""
        builtins: dict[str, object] = to_builtins(self)
        return builtins


def record_file(image: Path) -> Path:
    """Where the record of an image lies."""
    return image.with_name(f"{image.name}.json")


def read_record(image: Path) -> ImageRecord | None:
    """The record beside an image; None where there is none that can be read."""
    held = read_json(record_file(image)) if image.name else None  # none lies beside `/`
    if held is None:
        return None
    try:
        return convert(held, ImageRecord)
    except ValidationError:
        return None


def put(draft: Path, image: Path, record: ImageRecord) -> None:
    """Move a finished image to its place in one step, and its record beside it. Raises OSError.

    The old record goes first: an image without one is only not known, one with another's would look tampered with.
    """
    record_file(image).unlink(missing_ok=True)
    draft.replace(image)
    write_json(record_file(image), record.as_json())


def digest_of(path: Path) -> str:
    """`sha256:…` of a file. Raises OSError."""
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            hasher.update(chunk)
    return f"sha256:{hasher.hexdigest()}"


def now() -> str:
    """This second, UTC, as it stands in a record."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
