"""A folder whose default ACL takes the place of the umask for what is created in it, as `setfacl -d -m` sets it."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

USER_OBJ, GROUP_OBJ, GROUP, MASK, OTHERS = 0x01, 0x04, 0x08, 0x10, 0x20
"""Tags of entries, from linux/posix_acl.h."""


def set_default_acl(folder: Path, *entries: tuple[int, int, int]) -> None:
    """Give a folder a default ACL of (tag, permissions, id); skip the test where the file system has none."""
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(folder, "system.posix_acl_default", acl)
    except OSError:
        pytest.skip("this file system has no ACLs")
