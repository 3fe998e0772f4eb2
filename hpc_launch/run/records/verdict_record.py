"""verdict.json: what ended an attempt and what follows, created once, so that all drivers act on the same words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec import to_builtins

from hpc_launch.base.files import create_once, read_json
from hpc_launch.recover.diagnosis import Diagnosis, Verdict
from hpc_launch.run.layout import AttemptFolder
from hpc_launch.run.records import values

AGAIN = frozenset({"RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED", "CONTINUE"})
"""Verdicts that another attempt follows."""


@dataclass(frozen=True)
class VerdictRecord:
    """A verdict with what it was made from. `time` and `not_before` are seconds since the epoch."""

    action: str
    reason: str
    failure_class: str
    cause: str | None = None
    time: float = 0.0
    not_before: float = 0.0
    """The next attempt is to start no earlier."""
    exclude: tuple[str, ...] = ()
    readmit: tuple[str, ...] = ()
    """Nodes that are no longer kept off."""
    sets: tuple[str, ...] = ()
    ladder: int = 0
    further: bool = False
    """Whether the attempt got further than all before it."""
    step: int | None = None
    """How far it got, where that is known."""
    withdrawn: bool = False
    """The job could never start and was taken out of the queue."""
    blamed: tuple[str, ...] = ()
    evidence: tuple[Mapping[str, Any], ...] = field(default=())
    diagnosis: Mapping[str, Any] = field(default_factory=dict)

    @property
    def again(self) -> bool:
        """Whether another attempt follows."""
        return self.action in AGAIN


def decided(
    diagnosis: Diagnosis, verdict: Verdict, now: float, *, further: bool, step: int | None, withdrawn: bool = False
) -> VerdictRecord:
    """The record of a verdict made now."""
    told: dict[str, Any] = to_builtins(diagnosis)
    evidence = tuple(told.pop("evidence"))
    return VerdictRecord(
        action=verdict.action,
        reason=verdict.reason,
        failure_class=diagnosis.failure_class,
        cause=diagnosis.cause,
        time=now,
        not_before=now + verdict.delay_s,
        exclude=verdict.exclude,
        sets=verdict.sets,
        ladder=verdict.steps_used,
        further=further,
        step=step,
        withdrawn=withdrawn,
        blamed=diagnosis.bad_nodes,
        evidence=evidence,
        diagnosis=told,
    )


def keep_verdict(attempt: AttemptFolder, verdict: VerdictRecord) -> tuple[VerdictRecord, bool]:
    """Put the verdict on record unless one is there: the one that counts, and whether it is this. Raises OSError."""
    if create_once(attempt.verdict, json.dumps(asdict(verdict), indent=2, default=str) + "\n"):
        return verdict, True
    return decided_of(read_json(attempt.verdict)) or verdict, False


def decided_of(data: Mapping[str, Any] | None) -> VerdictRecord | None:
    """What a verdict.json says; None where there is none, or where it cannot be one."""
    if data is None or values.text(data.get("action")) is None:
        return None
    diagnosis = data.get("diagnosis")
    return VerdictRecord(
        action=str(data["action"]),
        reason=values.text(data.get("reason")) or "",
        failure_class=values.text(data.get("failure_class")) or "unknown",
        cause=values.text(data.get("cause")),
        time=values.seconds(data.get("time")) or 0.0,
        not_before=values.seconds(data.get("not_before")) or 0.0,
        exclude=_texts(data.get("exclude")),
        readmit=_texts(data.get("readmit")),
        sets=_texts(data.get("sets")),
        ladder=values.whole(data.get("ladder")) or 0,
        further=values.flag(data.get("further")),
        step=values.whole(data.get("step")),
        withdrawn=values.flag(data.get("withdrawn")),
        blamed=_texts(data.get("blamed")),
        evidence=tuple(quote for quote in _items(data.get("evidence")) if isinstance(quote, dict)),
        diagnosis=diagnosis if isinstance(diagnosis, dict) else {},
    )


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in _items(value) if isinstance(item, str))
