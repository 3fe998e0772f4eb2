"""The logs of an attempt: which there are, their lines by node and rank, and following them while they grow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_launch.run.layout import AttemptFolder

SHORTEST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0

LONGEST_LINE = 1 << 20
"""Bytes after which a line without an end is handed on in pieces."""

_CHUNK = 1 << 18
_NODE_LOG = re.compile(r"node-(\d{1,9})(?:\.rank-(\d{1,9}))?\.log\Z")
_RANK = re.compile(r"\[rank(\d{1,9})\]:")


@dataclass(frozen=True)
class LogFile:
    """A log. `node` counts from 0; None is the batch shell's own. `rank` where all of it is from one."""

    path: Path
    node: int | None = None
    rank: int | None = None


@dataclass(frozen=True)
class LogLine:
    """One line without its end, as text; bytes that are no UTF-8 are replaced."""

    file: LogFile
    text: str

    @property
    def rank(self) -> int | None:
        """The rank that wrote it, where the file or the line says so."""
        if self.file.rank is not None:
            return self.file.rank
        match = _RANK.match(self.text)
        return int(match[1]) if match else None


def log_files(attempt: AttemptFolder, node: int | None = None) -> list[LogFile]:
    """The logs there are: the batch log first, then by node; only that of `node` where one is given."""
    files = [LogFile(attempt.batch_log)] if node is None and os.path.isfile(attempt.batch_log) else []
    try:
        paths = list(attempt.logs.iterdir())
    except OSError:
        return files
    found = [
        LogFile(path, int(match[1]), None if match[2] is None else int(match[2]))
        for path in paths
        if (match := _NODE_LOG.match(path.name)) and os.path.isfile(path)  # a link to a device has no end
    ]
    found.sort(key=lambda file: (file.node or 0, file.rank or 0))
    return files + [file for file in found if node in (None, file.node)]


def read_lines(attempt: AttemptFolder, *, node: int | None = None, rank: int | None = None) -> Iterator[LogLine]:
    """All lines of all logs, file after file. A file that cannot be read is left out."""
    for file in log_files(attempt, node):
        yield from _wanted(_Tail(file).read(last=True), rank)


def follow(
    attempt: AttemptFolder,
    ended: Callable[[], bool],
    *,
    node: int | None = None,
    rank: int | None = None,
    from_end: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[LogLine]:
    """The lines as they come, until `ended()` holds and all was read.

    New files are taken up, one that was cut or replaced is read anew, and no line is handed on in two pieces (but for
    one longer than LONGEST_LINE). The pause between looks grows from 0.2 s to 2 s while nothing comes.

    Args:
        attempt: Whose logs.
        ended: Whether nothing more will be written; asked once before each look.
        node: Only this node's log.
        rank: Only lines of this rank.
        from_end: Leave out what is there already.
        sleep: How to wait so many seconds.
    """
    tails: dict[Path, _Tail] = {}
    pause = SHORTEST_PAUSE_S
    if from_end:
        tails = {file.path: _Tail(file, skip=True) for file in log_files(attempt, node)}
    while True:
        over = ended()
        came = False
        for file in log_files(attempt, node):
            tail = tails.setdefault(file.path, _Tail(file))
            for line in _wanted(tail.read(last=over), rank):
                came = True
                yield line
        if over:
            return
        pause = SHORTEST_PAUSE_S if came else min(pause * 1.5, LONGEST_PAUSE_S)
        sleep(pause)


class _Tail:
    """One log and how far it was read."""

    def __init__(self, file: LogFile, *, skip: bool = False) -> None:
        self._file = file
        self._at = 0
        self._inode: int | None = None
        self._rest = b""
        if skip:
            try:
                status = file.path.stat()
                self._at, self._inode = status.st_size, status.st_ino
            except OSError:
                self._at = 0

    def read(self, *, last: bool) -> Iterator[LogLine]:
        """The lines that were finished since; with `last` also one without an end."""
        for line in self._lines(last):
            yield LogLine(self._file, line.decode("utf-8", errors="replace").removesuffix("\r"))

    def _lines(self, last: bool) -> Iterator[bytes]:
        for data in self._chunks():
            *whole, self._rest = (self._rest + data).split(b"\n")
            yield from whole
            if len(self._rest) > LONGEST_LINE:
                yield self._rest
                self._rest = b""
        if last and self._rest:
            yield self._rest
            self._rest = b""

    def _chunks(self) -> Iterator[bytes]:
        try:
            with open(self._file.path, "rb") as stream:
                status = os.fstat(stream.fileno())
                if status.st_size < self._at or (self._inode is not None and status.st_ino != self._inode):
                    self._at, self._rest = 0, b""
                self._inode = status.st_ino
                stream.seek(self._at)
                while data := stream.read(_CHUNK):
                    self._at += len(data)
                    yield data
        except OSError:
            return


def _wanted(lines: Iterator[LogLine], rank: int | None) -> Iterator[LogLine]:
    return (line for line in lines if rank is None or line.rank == rank)
