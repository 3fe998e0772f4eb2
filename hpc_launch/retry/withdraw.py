"""A job in the queue that can never start: noticed, left for a while for somebody to mend, then a failure."""

from __future__ import annotations

from hpc_launch.recover.diagnosis import Diagnosis, Quote
from hpc_launch.retry.decision import RetryContext
from hpc_launch.run.records.scheduler_state import stuck_since
from hpc_launch.schedulers.slurm.pending_reasons import advice, failed_to_start

LAUNCH_S = 10.0
"""A job that Slurm holds because a node could not start it is mended by nobody: it waits only to be seen twice."""


def withdraw(found: RetryContext) -> Diagnosis | str | None:
    """The diagnosis of a job that is to be taken out of the queue now; in words how long it is left there; or None.

    None: what keeps it is for a person to undo, such as a hold. Since when it is stuck stands in a file, so that it
    does not depend on any driver.
    """
    live = found.case.live
    kind = failed_to_start(live.reason) if live is not None else None
    if live is None or kind is None:
        return None
    since = stuck_since(found.attempt, live)
    patience = LAUNCH_S if kind == "node_failure" else float(found.plan.retry.stuck_after)
    if live.as_of - since < patience:
        return f"job {live.job_id} can never start; it is left for {patience - live.as_of + since:.0f} s more"
    told = advice(live.reason, live.job_id)
    return Diagnosis(
        kind,
        cause="pending_held_after_launch_failure" if kind == "node_failure" else "pending_never",
        confidence="high",
        evidence=(Quote(live.source, 0, f"{live.state} ({live.reason})"),),
        default_verdict="RETRY_ELSEWHERE" if kind == "node_failure" else "STOP",
        advice=told.meaning if told is not None else "",
    )
