"""verdict.json: what ended an attempt and what follows.

The verdict is created once, so that all drivers act on the same one.
"""

from __future__ import annotations

from typing import Any

from msgspec import ValidationError, field, to_builtins
from msgspec.structs import asdict, replace

from hpc_launch.base.json_records import as_type, create_record, read_record
from hpc_launch.diagnose.decide_verdict import PastAttempt
from hpc_launch.diagnose.diagnosis import Diagnosis, Quote, Verdict
from hpc_launch.runs.layout import AttemptFolder


class VerdictRecord(PastAttempt, frozen=True, kw_only=True):
    """A verdict and what it was based on. `time` and `not_before` are seconds since the epoch."""

    action: str
    reason: str = ""
    time: float = 0.0
    not_before: float = 0.0
    """The next attempt must not start earlier."""
    readmit: tuple[str, ...] = ()
    """Nodes that are no longer excluded."""
    step: int | None = None
    """The last step it reached, where known."""
    withdrawn: bool = False
    """The job could never start and was removed from the queue."""
    evidence: tuple[Quote, ...] = ()
    diagnosis: dict[str, Any] = field(default_factory=dict)
    """The diagnosis, without its evidence."""

    @property
    def place(self) -> str:
        """` during its start (rendezvous: 1 of 2 nodes; n2 not started), first on n1`, as far as known."""
        found = stored_diagnosis(self)
        start, node = (found.start, found.first_failure.node) if found is not None else (None, None)
        return (f" during its start ({start})" if start else "") + (f", first on {node}" if node else "")


def verdict_record(
    diagnosis: Diagnosis, verdict: Verdict, now: float, *, further: bool, step: int | None, withdrawn: bool = False
) -> VerdictRecord:
    """The record of a verdict made now."""
    facts: dict[str, Any] = to_builtins(diagnosis)
    del facts["evidence"]
    same = asdict(verdict)
    return VerdictRecord(
        not_before=now + same.pop("delay_s"),
        **same,
        failure_class=diagnosis.failure_class,
        cause=diagnosis.cause,
        time=now,
        further=further,
        step=step,
        withdrawn=withdrawn,
        blamed=diagnosis.bad_nodes,
        evidence=diagnosis.evidence,
        diagnosis=facts,
    )


def keep_verdict(attempt: AttemptFolder, verdict: VerdictRecord) -> tuple[VerdictRecord, bool]:
    """Record the verdict unless there is one: the one on record, and whether it is this one. Raises OSError."""
    # One that stops the run is found again by the same evidence; one that acts must be on record before it does.
    if create_record(attempt.verdict, verdict, sync=verdict.again):
        return verdict, True
    return read_verdict(attempt) or verdict, False


def read_verdict(attempt: AttemptFolder) -> VerdictRecord | None:
    """The verdict on an attempt; None where there is none."""
    return read_record(attempt.verdict, VerdictRecord)


def stored_diagnosis(verdict: VerdictRecord) -> Diagnosis | None:
    """The diagnosis that a verdict is based on; None where the record has none, or one of another format."""
    try:
        found = as_type(verdict.diagnosis, Diagnosis)
    except ValidationError:
        return None
    return replace(found, evidence=verdict.evidence)
