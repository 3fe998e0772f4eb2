"""Finds what a host has written into its copy of an attempt folder, and what it has to send (copy_host.py).

Self-contained: standard library of Python 3.6 or later.
"""

import os
import stat
import time
from typing import Dict, Iterator, List, Optional, Set, Tuple

from hpc_launch.agent.copy_protocol import (
    CHUNK,
    MARKS,
    MOST_FILES,
    MOST_MARK,
    Fields,
    frame,
    is_own,
    make_mark,
    note_output,
    output_time,
)


class Sender:
    """What this host has written into the attempt folder, and sends to the first one."""

    def __init__(self, folder: str, node: int, known: Fields) -> None:
        self.folder, self.node = folder, node
        self.sent: Dict[str, Tuple[int, int]] = {path: (-1, int(at)) for path, at in known.items()}
        """For each file its inode, -1 if unknown, and how much of it was sent."""
        self.marks: Set[str] = set()
        self.output = output_time(folder)

    def exists(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.folder, name))

    def files(self) -> List[str]:
        """The files of this node: first those that are small and urgent."""
        found = []
        for name in ("logs", "agent"):
            for above, _, names in os.walk(os.path.join(self.folder, name)):
                found += [os.path.relpath(os.path.join(above, one), self.folder) for one in names]
                if len(found) > MOST_FILES:
                    break
        own = [path for path in found[:MOST_FILES] if is_own(path, self.node)]
        return sorted(
            own, key=lambda path: (not path.endswith((".exit", ".began")), not path.startswith("agent"), path)
        )

    def news(self, everything: bool) -> Iterator[bytes]:
        """Frames with what is new. A part of each file, or everything."""
        for name in MARKS:
            if name not in self.marks and self.exists(name):
                self.marks.add(name)
                with open(os.path.join(self.folder, name), "rb") as file:
                    yield frame({"is": "mark", "path": name}, file.read(MOST_MARK))
        output = output_time(self.folder)
        if output > self.output:
            self.output = output
            yield frame({"is": "output", "age": max(time.time() - output, 0.0)})
        for path in self.files():
            for _ in range(1 << 20 if everything else 4):
                found = self.growth(path, everything)
                if found is None:
                    break
                yield found

    def growth(self, path: str, everything: bool) -> Optional[bytes]:
        """The next part of a file, or None. An empty file may have its content soon: only with everything."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(os.path.join(self.folder, path), flags), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return None
                if status.st_size == 0 and not everything:
                    return None
                inode, at = self.sent.get(path, (-1, 0))
                again = inode not in (-1, status.st_ino) or status.st_size < at
                at = 0 if again else at
                if status.st_size == at and not again and path in self.sent:
                    self.sent[path] = status.st_ino, at
                    return None
                file.seek(at)
                data = file.read(CHUNK)
        except OSError:
            return None
        self.sent[path] = status.st_ino, at + len(data)
        news: bytes = frame({"is": "growth", "path": path, "at": at}, data)
        return news

    def see(self, fields: Fields, data: bytes) -> None:
        """What the first host has seen on another one."""
        if fields["is"] == "output":
            if self.exists("agent") and note_output(self.folder, time.time() - fields["age"]):
                self.output = output_time(self.folder)
        elif fields["path"] in MARKS and fields["path"] not in self.marks:
            self.marks.add(fields["path"])
            make_mark(self.folder, fields["path"], data)
