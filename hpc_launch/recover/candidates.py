"""Possible root causes: one type, and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from hpc_launch.recover.diagnosis import Action, Quote


class Candidate(Struct, frozen=True):
    """A possible root cause."""

    failure_class: str
    cause: str
    order: int
    """As in the rules: 10 nearest to the root, 60 and above a bare sign that something ended."""
    quotes: tuple[Quote, ...] = ()
    node: str | None = None
    rank: int | None = None
    time: float | None = None
    blames: str | None = None
    peer: str | None = None
    verdict: Action | None = None
    at_start: Action | None = None
    advice: str = ""
    source: int = 1 << 30
    line: int = 1 << 30
    rule: str = ""
    certain: bool = False
    """Said by the scheduler or the watcher, not only read in a log."""

    @property
    def band(self) -> int:
        """Candidates of one band are decided by time."""
        return self.order // 10


def choose(candidates: Sequence[Candidate]) -> Candidate | None:
    """The root: the band nearest to it, and in that band the first in time; None where there is no candidate.

    In one log lines are ordered by their place. Between logs the clock decides; what bears no time was written by a
    program while it lived, and comes before the words of those who saw it end.
    """
    if not candidates:
        return None
    band = min(candidate.band for candidate in candidates)
    near = [candidate for candidate in candidates if candidate.band == band]
    if len({candidate.source for candidate in near}) == 1:
        return min(near, key=lambda candidate: (candidate.line, candidate.order))
    return min(
        near,
        key=lambda candidate: (
            -math.inf if candidate.time is None else candidate.time,
            candidate.source,
            candidate.line,
            candidate.order,
        ),
    )
