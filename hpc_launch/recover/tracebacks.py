"""Python's tracebacks in a log of many ranks: where each was, and which line is the exception itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpc_launch.recover.log_line import LogLine

_FRAME = re.compile(r'^\s*File "[^"]{1,400}", line \d+')
_EXCEPTION = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+(?:: .*)?$|[A-Z]\w+: .*$")
_NOTEBOOK = re.compile(r"[\w.]{3,80}(?:\(\w{3,80}\))?\s{2,60}Traceback \(most recent")
"""A notebook names the exception in the head of its traceback."""
_INSIDE = (" ", "\t", "File ", "~", "^", "...", "[Previous line repeated", "|", "+")
_LONGEST = 400
"""Lines after which a traceback without an end is given up."""
_BESIDE = 3
"""Lines within which the code of the last frame stands before the exception: marks may stand between."""
_NEAR = 12
"""Lines within which the last frame belongs to an exception."""


class Tracebacks:
    """Follows the open traceback of each rank."""

    def __init__(self) -> None:
        self._open: dict[int | None, tuple[int, str]] = {}
        self._frames: dict[int | None, tuple[str, int]] = {}
        self._frame_line = -1
        self._code: dict[int | None, tuple[str, int]] = {}

    def busy(self, number: int) -> bool:
        """Whether this line may belong to a traceback, whatever it looks like."""
        return bool(self._open) or self._frame_line == number - 1

    def takes(self, line: LogLine, number: int) -> bool:
        """Whether the line is a part of a traceback that rules have no business with: its head, a frame, its code."""
        if "Traceback (most recent" in line.body:
            self._open[line.rank] = (number, line.body.strip())
            return _NOTEBOOK.match(line.body) is None
        if _FRAME.match(line.body):
            self._frames[line.rank] = (line.body.strip()[:400], number)
            self._frame_line = number
            return True
        if self._frame_line == number - 1 and line.body.startswith("  "):
            self._code[line.rank] = (line.body.strip()[:400], number)
            return True
        return False

    def ends(self, line: LogLine, number: int, *, known: bool) -> bool:
        """Whether the line is the exception that a traceback ends with. `known`: a rule knows it."""
        begun = self._open.get(line.rank)
        if begun is None or line.body.startswith(_INSIDE):
            return False
        if not known and not _EXCEPTION.match(line.body):
            if number - begun[0] > _LONGEST:
                del self._open[line.rank]
            return False  # torn: lines of several ranks may stand in one another's way
        del self._open[line.rank]
        return True

    def frame(self, rank: int | None, number: int) -> tuple[str, int]:
        """The frame just before a line, with its own line; empty where there is none near."""
        text, at = self._frames.get(rank, ("", 0))
        return (text, at) if number - at <= _NEAR else ("", 0)

    def code(self, rank: int | None, number: int) -> str:
        """The line of code that raised the exception of a line; empty where the traceback shows none."""
        text, at = self._code.get(rank, ("", 0))
        return text if number - at <= _BESIDE else ""

    def unfinished(self) -> Iterator[tuple[int | None, int, str]]:
        """Tracebacks that the log breaks off in: rank, line, text."""
        for rank, (number, text) in self._open.items():
            yield rank, number, text
