"""A possible root cause."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.diagnose.diagnosis import Action, Confidence, Quote


class Candidate(Struct, frozen=True):
    """A possible root cause."""

    failure_class: str
    cause: str
    order: int
    """As in the rules: 10 is nearest to the root, 60 and above only shows that something ended."""
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
    """Reported by the scheduler or the watcher, not only read in a log."""
    confidence: Confidence | None = None
    """Where it does not follow from the order."""
    timed: bool = True
    """Whether the failure happened at `time`; else `time` only orders the candidates."""
    by_slurm: bool = False
    """Slurm itself wrote the line: no output of the training."""

    @property
    def band(self) -> int:
        """Time decides among candidates of one band."""
        return self.order // 10

    @property
    def proven(self) -> bool:
        """Whether the evidence is that of the scheduler or the watcher, which the training cannot write."""
        return self.certain or self.by_slurm
