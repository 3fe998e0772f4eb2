"""What the rules of a diagnosis look at: the evidence, the rule book, and the possible root causes found in them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hpc_launch.recover import log_candidates, record_candidates
from hpc_launch.recover.candidates import Candidate
from hpc_launch.recover.evidence import Evidence
from hpc_launch.recover.rulebook import Rulebook


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
        evidence = self.evidence
        return [
            *self._from_logs[0],
            *log_candidates.from_workers(evidence, self.rules),
            *record_candidates.from_scheduler(evidence.scheduler),
            *record_candidates.from_notes(evidence.notes),
        ]

    @property
    def faint(self) -> list[Candidate]:
        """What the program survived, or only warned of."""
        return self._from_logs[1]
