"""The logs of an attempt: list them, read their lines by node and rank, and follow them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_launch.base.files import next_data, open_regular
from hpc_launch.job.shell_text import visible, without_escapes
from hpc_launch.runs.layout import AttemptFolder

SHORTEST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0

LONGEST_LINE = 1 << 20
"""Bytes after which a line without a newline is split."""

_CHUNK = 1 << 18
_RANK = re.compile(r"\[rank(\d{1,9})\]:")


@dataclass(frozen=True)
class LogFile:
    """A log of an attempt. `node` counts from 0; None for the batch log. `rank` where all of it is from one rank."""

    attempt: int
    path: Path
    node: int | None = None
    rank: int | None = None


@dataclass(frozen=True)
class RankLogLine:
    """One line without its newline; bytes that are not UTF-8 are replaced."""

    file: LogFile
    text: str

    def __str__(self) -> str:
        """The text as it may be printed: without escape sequences, with control characters escaped."""
        return "\n".join(map(visible, without_escapes(self.text)))

    @property
    def node(self) -> int | None:
        """The node that wrote it, from 0; None for the batch script."""
        return self.file.node

    @property
    def rank(self) -> int | None:
        """The rank that wrote the line, where the file or the line says so."""
        if self.file.rank is not None:
            return self.file.rank
        match = _RANK.match(self.text)
        return int(match[1]) if match else None


def log_files(attempt: AttemptFolder, node: int | None = None) -> list[LogFile]:
    """The existing logs: the batch log first, then by node; with `node` only that node's."""
    files = [LogFile(attempt.number, attempt.batch_log)] if node is None and os.path.isfile(attempt.batch_log) else []
    logs = [LogFile(attempt.number, path, number, rank) for number, rank, path in attempt.node_logs()]
    logs.sort(key=lambda file: (file.node or 0, file.rank or 0))
    return files + [file for file in logs if node in (None, file.node)]


def follow(
    attempt: AttemptFolder,
    ended: Callable[[], bool] = lambda: True,
    *,
    node: int | None = None,
    rank: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[RankLogLine]:
    """Yield lines as they are written, until `ended()` is true and everything has been read.

    New files are included, truncated or replaced ones are read again from the start, and no line is split (except one
    longer than LONGEST_LINE). Unreadable files are left out. The pause between reads grows from 0.2 s to 2 s while
    nothing is written.

    Args:
        ended: Whether nothing more will be written; called once before each read. Default: read what there is.
        node, rank: Only this node's log, only lines of this rank.
        sleep: How to wait for so many seconds.
    """
    tails: dict[Path, _Tail] = {}
    pause = SHORTEST_PAUSE_S
    while True:
        over = ended()
        new = False
        for file in log_files(attempt, node):
            tail = tails.setdefault(file.path, _Tail(file))
            for line in tail.read(last=over):
                if rank is None or line.rank == rank:
                    new = True
                    yield line
        if over:
            return
        pause = SHORTEST_PAUSE_S if new else min(pause * 1.5, LONGEST_PAUSE_S)
        sleep(pause)


class _Tail:
    """One log and how far it has been read."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._at = 0
        self._inode: int | None = None
        self._rest = b""

    def read(self, *, last: bool) -> Iterator[RankLogLine]:
        """The lines completed since the last read; with `last` also one without a newline."""
        for data in self._chunks():
            *whole, self._rest = (self._rest + data).split(b"\n")
            yield from map(self._line, whole)
            if len(self._rest) > LONGEST_LINE:
                yield self._line(self._rest)
                self._rest = b""
        if last and self._rest:
            yield self._line(self._rest)
            self._rest = b""

    def _line(self, line: bytes) -> RankLogLine:
        return RankLogLine(self._file, line.decode("utf-8", errors="replace").removesuffix("\r"))

    def _chunks(self) -> Iterator[bytes]:
        try:
            with open_regular(self._file.path) as stream:
                status = os.fstat(stream.fileno())
                if status.st_size < self._at or (self._inode is not None and status.st_ino != self._inode):
                    self._at, self._rest = 0, b""
                self._inode = status.st_ino
                stream.seek(self._at)
                # To the end that it has now: its writer may be as fast as this reader.
                while self._at < status.st_size and (data := stream.read(min(_CHUNK, status.st_size - self._at))):
                    self._at += len(data)
                    yield data.replace(b"\0", b"")
                    if not data.strip(b"\0"):
                        self._at = stream.seek(min(next_data(stream, self._at), status.st_size))
        except OSError:
            return
