"""What the rules of a diagnosis look at: the evidence, the rule book, and the possible root causes found in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from hpc_launch.diagnose import log_candidates, record_candidates, worker_candidates
from hpc_launch.diagnose.candidates import Candidate
from hpc_launch.diagnose.evidence import Evidence
from hpc_launch.diagnose.rulebook import Rulebook


@dataclass(frozen=True)
class DiagnosisInput:
    """One attempt, or the logs of any job, to be diagnosed."""

    evidence: Evidence
    rules: Rulebook

    @cached_property
    def _from_logs(self) -> tuple[list[Candidate], list[Candidate]]:
        return log_candidates.from_logs(self.evidence, self.rules)

    @cached_property
    def solid(self) -> list[Candidate]:
        """Everything that may be the root cause."""
        evidence, ahead = self.evidence, dict(self.evidence.clocks)
        written = [*self._from_logs[0], *worker_candidates.from_workers(evidence, self.rules)]
        return [
            *(_by_first_clock(candidate, ahead) for candidate in written),
            *record_candidates.from_scheduler(evidence),
            *record_candidates.from_notes(evidence.notes),
        ]

    @property
    def faint(self) -> list[Candidate]:
        """What the program survived, or only warned of."""
        return self._from_logs[1]


def _by_first_clock(candidate: Candidate, ahead: Mapping[str, float]) -> Candidate:
    """The candidate with its time by the clock of the first node, good enough to order the candidates."""
    offset = ahead.get(candidate.node or "", 0.0)
    if not offset or candidate.time is None:
        return candidate
    return replace(candidate, time=candidate.time - offset, timed=False)
