"""Access control lists of files and folders, as `setfacl` sets them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHERS = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
"""Tags of entries, from linux/posix_acl.h."""


def set_default_acl(folder: Path, *entries: tuple[int, int, int]) -> None:
    """Give a folder an ACL of (tag, permissions, id) that takes the place of the umask for what is created in it."""
    _set(folder, "default", entries)


def set_acl(path: Path, *entries: tuple[int, int, int]) -> None:
    """Give a file or folder an access ACL of (tag, permissions, id)."""
    _set(path, "access", entries)


def _set(path: Path, kind: str, entries: tuple[tuple[int, int, int], ...]) -> None:
    """Skip the test where the file system has no ACLs."""
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", acl)
    except OSError:
        pytest.skip("this file system has no ACLs")
