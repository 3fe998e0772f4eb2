"""Limit the work of matching the lines of a log against the rules: a training can write what takes minutes."""

from __future__ import annotations

UNITS = 100_000_000
"""Characters that expressions search in one log, about five seconds. Ordinary logs of failures take a tenth of it."""

LINE_UNITS = 1000
"""What a line takes before any expression searches it."""


class MatchBudget:
    """The work that is left for a log. Once it is spent, only the end of the log is matched."""

    def __init__(self, units: int = UNITS) -> None:
        self._left = units

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return self._left <= 0

    def spend(self, units: int) -> None:
        """Take off what a line took."""
        self._left -= units

    def for_next_log(self) -> MatchBudget:
        """The budget of the attempt's next log: what is left, and never too little for an ordinary log."""
        return MatchBudget(max(self._left, UNITS // 20))
