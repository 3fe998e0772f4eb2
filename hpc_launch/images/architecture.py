"""The CPU architecture of an image, read from its header or metadata without starting or mounting it."""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_launch.base.files import open_regular

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

OCI_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64", "386": "i386"}
"""OCI images use Go's names of architectures (image-spec, config.md, `architecture`)."""

ELF_MACHINES = {3: "i386", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""`e_machine` of an ELF header (elf(5), elf.h)."""

PROGRAMS = ("bin/sh", "usr/bin/sh", "bin/bash", "usr/bin/env", "bin/busybox")
"""Programs of an unpacked image whose ELF header gives the architecture."""

BLOB_LIMIT = 4 << 20
"""Maximum bytes read of a manifest or configuration; real ones have a few thousand."""


def architecture(image: Path) -> str | None:
    """The architecture, as in `uname -m`, of a SIF file, OCI layout or unpacked image; None if unknown.

    Raises OSError if the image cannot be read.
    """
    if os.path.isdir(image):
        return _of_layout(image) if os.path.isfile(image / "oci-layout") else _of_system(image)
    with open_regular(image) as stream:
        head = stream.read(SIF_ARCH_AT + 2)
    if not is_sif(head):
        return None
    return SIF_ARCHITECTURES.get(head[SIF_ARCH_AT : SIF_ARCH_AT + 2])


def cut_short(image: Path) -> bool:
    """Whether a SIF file is shorter than its header says: after a truncated download or a full disk."""
    with open_regular(image) as stream:
        head = stream.read(SIF_DATA_AT + 16)
    if not is_sif(head) or len(head) < SIF_DATA_AT + 16:
        return is_sif(head)
    offset, size = struct.unpack_from("<qq", head, SIF_DATA_AT)
    return image.stat().st_size < int(offset) + int(size)


def is_sif(head: bytes) -> bool:
    """Whether a file that starts with `head` is a SIF image."""
    return head[SIF_MAGIC_AT : SIF_MAGIC_AT + len(SIF_MAGIC)] == SIF_MAGIC


def _of_layout(folder: Path) -> str | None:
    """The architecture from the index or the first manifest's configuration (image-spec, image-layout.md)."""
    with suppress(ValueError, KeyError, IndexError, TypeError, AttributeError):
        entry = _json(folder / "index.json")["manifests"][0]
        named = (entry.get("platform") or {}).get("architecture")
        for _ in range(4):  # an index may refer to another one; real ones do so once
            if named is not None:
                break
            inner = _json(_blob(folder, entry["digest"]))
            if "manifests" in inner:
                entry = inner["manifests"][0]
                named = (entry.get("platform") or {}).get("architecture")
            else:
                named = _json(_blob(folder, inner["config"]["digest"]))["architecture"]
        return OCI_ARCHITECTURES.get(named, str(named)) if named is not None else None
    return None


def _blob(folder: Path, digest: str) -> Path:
    kind, _, number = digest.partition(":")
    if not (kind.isalnum() and number.isalnum()):
        raise ValueError(digest)
    return folder / "blobs" / kind / number


def _json(path: Path) -> Any:
    with open_regular(path) as stream:
        return json.loads(stream.read(BLOB_LIMIT))


def _of_system(folder: Path) -> str | None:
    for program in PROGRAMS:
        path = Path(os.path.realpath(folder / program))
        if not path.is_relative_to(os.path.realpath(folder)):
            # An absolute link is relative to the image's root.
            target = folder / program
            path = folder / os.readlink(target).lstrip("/") if target.is_symlink() else path
        with suppress(OSError, struct.error):
            with open_regular(path) as stream:
                head = stream.read(20)
            if head[:4] == b"\x7fELF":
                order = ">" if head[5] == 2 else "<"
                return ELF_MACHINES.get(struct.unpack_from(f"{order}H", head, 18)[0])
    return None
