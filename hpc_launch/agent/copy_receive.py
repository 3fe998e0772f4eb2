"""Receives the copy of a run on a host (copy_host.py), into folders that only this user can change.

Self-contained: standard library of Python 3.6 or later.
"""

import os
import stat
from typing import Any, List, Optional, Tuple

from hpc_launch.agent.copy_protocol import Fields, RefusedError, digest_of


def only_mine(folder: str, others: int) -> None:
    """Create a folder unless it is there. Raises RefusedError unless it is this user's, without these permissions, and
    OSError."""
    if not os.path.lexists(folder):
        os.makedirs(folder, 0o755)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & others:
        raise RefusedError("%s is not a folder that only you can change" % folder)
    above = os.path.dirname(os.path.realpath(folder))
    while True:
        status = os.stat(above)
        sticky = status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.getuid()) or (status.st_mode & 0o002 and not sticky):
            raise RefusedError("another user can replace %s" % above)
        if above == "/":
            return
        above = os.path.dirname(above)


def is_here(path: str, entry: List[Any]) -> bool:
    """Whether a file has this size and content."""
    if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) != entry[2]:
        return False
    return bool(digest_of(path) == entry[3])


class Receiver:
    """The files that come from the first host. An entry is [path, mode, size, digest], or [path, link]."""

    def __init__(self, roots: List[Fields]) -> None:
        self.entries: List[Tuple[str, List[Any]]] = []
        self.part: Optional[Any] = None
        for root in roots:
            only_mine(root["path"], root["others"])
            for folder in root.get("folders", []):
                os.makedirs(os.path.join(root["path"], folder), 0o755, exist_ok=True)
            self.entries += [(os.path.join(root["path"], entry[0]), entry) for entry in root["entries"]]

    def lacking(self) -> List[int]:
        """The entries whose content is not here. Links are made at once."""
        found = []
        for number, (path, entry) in enumerate(self.entries):
            if not os.path.isdir(os.path.dirname(path)):
                os.makedirs(os.path.dirname(path), 0o755)
            if len(entry) == 2:
                if not (os.path.islink(path) and os.readlink(path) == entry[1]):
                    if os.path.lexists(path):
                        os.unlink(path)
                    os.symlink(entry[1], path)
            elif is_here(path, entry):
                os.chmod(path, entry[1])
            else:
                found.append(number)
        return found

    def take(self, number: int, data: bytes, last: bool) -> None:
        """A part of a file. Raises RefusedError if the file arrived with another content."""
        path, entry = self.entries[number]
        temporary = os.path.join(os.path.dirname(path), ".%s.hpc-launch" % os.path.basename(path)[:200])
        if self.part is None:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            self.part = open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self.part.write(data)
        if last:
            self.part.close()
            self.part = None
            os.chmod(temporary, entry[1])
            if digest_of(temporary) != entry[3]:
                os.unlink(temporary)
                raise RefusedError("%s did not arrive as it was sent" % path)
            os.rename(temporary, path)
