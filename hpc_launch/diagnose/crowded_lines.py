"""Bound the work on a log of many different lines with the same words: only the first and the last of them are read."""

from __future__ import annotations

from collections import deque

from msgspec import Struct

FIRST = 1000
"""How many lines with the same words of rules are read at once."""
LAST = 200
"""How many of the later ones are read at the end of the log."""
_SETS = 20_000
"""How many sets of words are remembered."""


class HeldLine(Struct, frozen=True):
    """A line that is read at the end of the log."""

    line: int
    text: str
    task: int | None
    time: float | None
    """The latest time known at this line."""


class CrowdedLines:
    """Counts lines by the words of rules in them, and holds back the last of those that come too often."""

    def __init__(self) -> None:
        self._count: dict[frozenset[int], int] = {}
        self._held: dict[frozenset[int], deque[HeldLine]] = {}

    def crowded(self, words: frozenset[int]) -> bool:
        """Count a line with these words of rules; True if enough such lines were read."""
        if not words:
            return False
        count = self._count.get(words, 0) + 1
        if count > FIRST:
            return True
        if len(self._count) < _SETS or words in self._count:
            self._count[words] = count
        return False

    def hold(self, words: frozenset[int], line: HeldLine) -> None:
        """Keep such a line until the end of the log, or until enough others have followed."""
        self._held.setdefault(words, deque(maxlen=LAST)).append(line)

    def release(self) -> list[HeldLine]:
        """The lines that were held back, in order."""
        held = sorted((line for lines in self._held.values() for line in lines), key=lambda line: line.line)
        self._held.clear()
        return held
