"""Images as far as a program looks at them that does not run them."""

from __future__ import annotations

import struct


def sif(arch: bytes = b"02", size: int = 4096, *, fill: bytes = b"squashfs") -> bytes:
    """The global header of a SIF file (github.com/apptainer/sif, pkg/sif/sif.go), and something behind it."""
    head = b"#!/usr/bin/env run-singularity\n\0" + b"SIF_MAGIC\0" + b"01\0" + arch + b"\0"
    head += bytes(112 - len(head)) + struct.pack("<qq", 128, size - 128)
    return (head + fill * (size // len(fill) + 1))[:size]
