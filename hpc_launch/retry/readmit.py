"""An attempt that cannot run because our own exclusions leave too few nodes: the newest of them is dropped."""

from __future__ import annotations

import re

from msgspec import structs

from hpc_launch.recover.diagnosis import Action, Diagnosis, Verdict
from hpc_launch.retry.decision import TOO_FEW, RetryContext
from hpc_launch.run.records.verdict_record import VerdictRecord, verdict_record

_TOO_FEW = re.compile(
    r"node configuration is not available|required nodes? not available|node count specification|BadConstraints"
    r"|ReqNodeNotAvail",
    re.IGNORECASE,
)
"""What Slurm says of a job for which a partition has too few nodes (slurm_errno.c, job_reason_codes)."""


def readmitting(found: RetryContext, told: Diagnosis, *, withdrawn: bool = False) -> VerdictRecord | None:
    """The verdict on an attempt that was refused, or can never start, with nodes kept off by us; None for others.

    Only attempts that a verdict asked for: of a first one, and of a person's, that person saw the refusal.
    """
    live = found.case.live
    said = (live.reason if withdrawn and live is not None else found.case.files.void) or ""
    before = found.before()
    last = before[-1][1] if before else None
    if last is None or not last.again or not _TOO_FEW.search(said):
        return None
    # The run's own come last in time; the ledger's were known before it began.
    intent = found.case.files.intent
    kept_off = [*intent.overrides.ledger, *intent.overrides.exclude] if intent is not None else []
    if not kept_off:
        return None
    node = kept_off[-1]
    reason = f"too few nodes are left without {', '.join(kept_off)}: {node} is no longer kept off"
    action: Action = last.action  # type: ignore[assignment]
    known = structs.replace(told, cause=TOO_FEW)
    verdict = Verdict(action, reason, steps_used=last.ladder)
    record = verdict_record(known, verdict, found.case.now, further=False, step=None, withdrawn=withdrawn)
    return structs.replace(record, readmit=(node,))
