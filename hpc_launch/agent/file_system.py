"""The file system of a path: whether only this node uses it. Standard library of Python 3.6 or later."""

import contextlib
import os

LOCAL = frozenset(
    "ext2 ext3 ext4 xfs btrfs zfs f2fs jfs overlay squashfs erofs iso9660 tmpfs ramfs rootfs devtmpfs".split()
)
"""File systems that only this node uses. All others count as shared."""


def file_system(path: str, proc: str = "/proc") -> str:
    """The type of the file system of a path; empty if unknown."""
    path, best, result = os.path.realpath(path) + "/", "", ""
    with contextlib.suppress(OSError), open(proc + "/self/mountinfo", "rb") as stream:
        for line in map(os.fsdecode, stream):
            words = line.split()  # proc(5): … mount point … - type …
            place = words[4].replace("\\040", " ").rstrip("/") + "/"
            if path.startswith(place) and len(place) >= len(best):
                best, result = place, words[words.index("-") + 1]
    return result
