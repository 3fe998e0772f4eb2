"""Writes what a host sends back of its copy (copy_host.py) into the attempt folder on the first host.

The host is not trusted: it may only write files with the names of its own node, each in order from its begin, and no
file that another node or a process here has created.

Self-contained: standard library of Python 3.6 or later.
"""

import os
import time
from typing import Any, Dict

from hpc_launch.agent.copy_protocol import MARKS, MOST_FILES, MOST_MARK, is_own, make_mark, note_output

MOST_BYTES = 64 << 30
"""Of a host, in an attempt."""


class Store:
    """The files of one node."""

    def __init__(self, folder: str, node: int) -> None:
        self.folder, self.node = folder, node
        self.sizes: Dict[str, int] = {}
        """The files that this node has created here, and how much of each has arrived."""
        self.bytes = 0

    def take(self, fields: Dict[str, Any], data: bytes) -> None:
        """Do what a frame says. Raises ValueError for what no honest host sends, and OSError."""
        kind, path = fields.get("is"), fields.get("path")
        if kind == "mark" and path in MARKS:
            make_mark(self.folder, str(path), data[:MOST_MARK])
        elif kind == "output":
            self.output(fields.get("age"))
        elif kind == "growth" and isinstance(path, str) and is_own(path, self.node):
            self.growth(path, fields.get("at"), data)
        else:
            raise ValueError("an unexpected frame: %.80r of %.80r" % (kind, path))

    def output(self, age: Any) -> None:
        """Note when the logs of the node grew last."""
        if not isinstance(age, (int, float)) or not 0 <= age < 1e9:
            raise ValueError("no age: %.80r" % (age,))
        note_output(self.folder, time.time() - age)

    def growth(self, path: str, at: Any, data: bytes) -> None:
        """Append to a file of the node, or begin it again."""
        size = self.sizes.get(path)
        if isinstance(at, bool) or not isinstance(at, int) or at not in (0, size or 0):
            raise ValueError("%s goes on at %.80r and not at %s" % (path, at, size))
        self.bytes += len(data)
        if self.bytes > MOST_BYTES or (size is None and len(self.sizes) >= MOST_FILES):
            raise ValueError("more than %d files or %d GiB" % (MOST_FILES, MOST_BYTES >> 30))
        whole = os.path.join(self.folder, path)
        if size is None:
            make_folders(self.folder, os.path.dirname(path))
        flags = os.O_WRONLY | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if size is None else 0)
        try:
            descriptor = os.open(whole, flags, 0o644)
        except FileExistsError:
            raise ValueError("%s belongs to another node" % path) from None
        with open(descriptor, "wb", buffering=0) as file:
            if at == 0:
                file.truncate()
            file.seek(at)
            file.write(data)
        self.sizes[path] = at + len(data)


def make_folders(above: str, path: str) -> None:
    """Create folders, none of which may be a link. Raises OSError."""
    for name in path.split("/"):
        above = os.path.join(above, name)
        try:
            os.mkdir(above, 0o700 if name.startswith("ranks-of-node") else 0o755)
        except FileExistsError:
            if os.path.islink(above):
                raise
