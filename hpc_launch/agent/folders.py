"""Folders: their file system, and whether other users can replace them. Runs on a host as text, too.

    folders.py RUN ATTEMPT TOKEN WORKDIR COPIED   sent to a host by copies.py

There it prepares the folders for a copy of the run and prints `shared` if the host has the first one's folder, or
`ready`, and `rsync` if the host has that.

Self-contained: standard library of Python 3.6 or later.
"""

import contextlib
import os
import shutil
import stat
import sys
from typing import IO, List

FIRST_HOST = os.path.join("agent", "first-host")
"""In an attempt folder: only those hosts see it that share the folder with the first one."""


LOCAL = frozenset(
    "ext2 ext3 ext4 xfs btrfs zfs f2fs jfs overlay squashfs erofs iso9660 tmpfs ramfs rootfs devtmpfs".split()
)
"""File systems that only this node uses. All others count as shared."""


def new_file(path: str) -> IO[str]:
    """Create a file that only this user can read. Raises OSError if it exists, also as somebody's link."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w")


class NotOwnError(OSError):
    """Why a folder cannot be used."""


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


def make_own_folder(path: str, others: int = 0o077) -> None:
    """Create a private folder unless it is there. Raises OSError, and NotOwnError unless it is this user's, without
    the permissions `others`."""
    if not os.path.lexists(path):
        os.makedirs(path, 0o700, exist_ok=True)
    made = os.lstat(path)
    if not stat.S_ISDIR(made.st_mode) or made.st_uid != os.getuid() or made.st_mode & others:
        raise NotOwnError("%s is not a folder that only you can change" % path)


def refuse_replaceable(place: str) -> None:
    """Raise NotOwnError if another user can replace what is in a folder, or a folder above it."""
    while True:
        made = os.stat(place)
        writable = made.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not made.st_mode & stat.S_ISVTX
        if made.st_uid not in (0, os.getuid()) or writable:
            raise NotOwnError("others can replace files in %s" % place)
        if place == "/":
            return
        place = os.path.dirname(place)


def prepare(run: str, attempt: str, token: str, workdir: str, copied: str) -> str:
    """Make the folders of a copy. Returns what the host prints."""
    try:
        with open(os.path.join(attempt, FIRST_HOST)) as file:
            if file.read() == token:
                return "shared"
    except OSError:
        pass
    if workdir and not copied and not os.path.isdir(workdir):
        raise NotOwnError("it has no folder %s: create it, or set `code: {copy_workdir: true}`" % workdir)
    for folder, others in [(run, 0o022), *([(workdir, 0o002)] if copied else [])]:
        make_own_folder(folder, others)
        refuse_replaceable(os.path.dirname(os.path.realpath(folder)))
    for name in ("logs", os.path.join("agent", "stacks")):
        os.makedirs(os.path.join(attempt, name), exist_ok=True)
    return "ready rsync" if shutil.which("rsync") else "ready"


def main(words: List[str]) -> int:
    """Prepare this host."""
    os.umask(0o022)
    try:
        print(prepare(*words))
    except (OSError, NotOwnError) as error:
        sys.stderr.write("%s\n" % error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
