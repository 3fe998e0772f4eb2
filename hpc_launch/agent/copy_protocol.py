"""What both ends of a copy have in common: frames, the files that a host sends back, and the marks for all hosts.

A frame is a line with two numbers, as many bytes of JSON and as many bytes of data. An empty line between frames only
says that the sender lives. For copies.py and copy_host.py.

Self-contained: standard library of Python 3.6 or later.
"""

import hashlib
import json
import os
import re
from typing import Any, Dict, Iterator, Tuple

CHUNK = 1 << 18
"""Bytes of a file in one frame."""
MOST_DATA = 4 << 20
MOST_FIELDS = 64 << 20
"""Of the list of files, which a host gets. What a host sends has at most MOST_DATA."""
MOST_FILES = 10000
"""That a host sends back."""
MARKS = ("ending", "stop", "done", "agent/hang.json")
"""Files of the attempt whose appearance every host has to see."""
MOST_MARK = 4096
OUTPUT = "agent/last-output"
"""Its time is when a log of any host grew last: watch_hang.py."""
FIRST_HOST = "agent/first-host"
"""What only those hosts see that share the folder with the first one."""
_OWN = (
    r"logs/node-%d(\.rank-[0-9]{1,7})?\.(log|exit|began)",
    r"logs/ranks-of-node-%d(/[A-Za-z0-9_][A-Za-z0-9._-]{0,150}){1,5}",
    r"agent/node-%d\.jsonl",
)
_SHARED = (r"agent/stacks/rank-[0-9]{1,7}\.txt", r"agent/nccl-rank-[0-9]{1,7}")

Fields = Dict[str, Any]


def is_own(path: str, node: int) -> bool:
    """Whether a file of the attempt folder is one that node `node` writes."""
    patterns = [pattern % node for pattern in _OWN] + list(_SHARED)
    return any(re.match(pattern + r"\Z", path) for pattern in patterns)


def frame(fields: Fields, data: bytes = b"") -> bytes:
    """What to send."""
    text = json.dumps(fields).encode()
    return b"%d %d\n" % (len(text), len(data)) + text + data


class Frames:
    """Puts frames together from what arrives."""

    def __init__(self, most_fields: int = MOST_DATA) -> None:
        self.rest = b""
        self.most_fields = most_fields

    def feed(self, data: bytes) -> Iterator[Tuple[Fields, bytes]]:
        """The frames that are complete now. Raises ValueError if it is something else."""
        self.rest += data
        while True:
            self.rest = self.rest.lstrip(b"\n")
            head = self.rest[:40].split(b"\n")[0]
            if len(head) == len(self.rest):
                if len(head) >= 40:
                    raise ValueError("no frame")
                return
            match = re.match(rb"([0-9]{1,9}) ([0-9]{1,9})\Z", head)
            if match is None:
                raise ValueError("no frame")
            length, size = int(match.group(1)), int(match.group(2))
            if length > self.most_fields or size > MOST_DATA:
                raise ValueError("a frame of %d and %d bytes" % (length, size))
            begin = len(head) + 1
            if len(self.rest) < begin + length + size:
                return
            text, body = self.rest[begin : begin + length], self.rest[begin + length : begin + length + size]
            self.rest = self.rest[begin + length + size :]
            yield dict(json.loads(text.decode("utf-8"))), body


class RefusedError(Exception):
    """The host cannot have the copy."""


def digest_of(path: str) -> str:
    """The SHA-256 of a file; '' if there is none."""
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(CHUNK), b""):
                found.update(block)
    except OSError:
        return ""
    return found.hexdigest()


def make_mark(folder: str, path: str, data: bytes) -> None:
    """Create a file that says something to all nodes, unless it is there. Raises OSError."""
    try:
        with open(os.path.join(folder, path), "xb") as file:
            file.write(data)
    except FileExistsError:
        pass


def output_time(folder: str) -> float:
    """When a log of any host grew last, as far as this host knows; 0.0 if none did."""
    try:
        return os.stat(os.path.join(folder, OUTPUT)).st_mtime
    except OSError:
        return 0.0


def note_output(folder: str, at: float) -> bool:
    """Note that a log grew at this time. False if that, or later growth, is known. Raises OSError."""
    if at <= output_time(folder):
        return False
    path = os.path.join(folder, OUTPUT)
    with open(path, "a"):
        os.utime(path, (at, at))
    return True
