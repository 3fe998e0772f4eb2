"""The state of a run from its last attempt: a pure table, with the few words that need more than it."""

from __future__ import annotations

from collections.abc import Callable

from hpc_launch.run.records.verdict_record import VerdictRecord
from hpc_launch.run.status.attempt_view import WAITING_STATES, AttemptView
from hpc_launch.run.status.run_status import FINAL_RUN_STATES, AttemptStatus

Never = Callable[[str], object | None]
"""What to do about a pending reason that never passes by itself; None where waiting helps.

Its `str` is shown, with the job's id in the place of `JOBID`.
"""

STATES = {
    "VOID": "STOPPED",
    "SUBMITTING": "SUBMITTING",
    "CONFIGURING": "STARTING",
    "POWER_UP_NODE": "STARTING",
    "RUNNING": "RUNNING",
    "RESIZING": "RUNNING",
    "SIGNALING": "RUNNING",
    "UPDATE_DB": "RUNNING",
    # An administrator's pause ends by itself, with the training still in memory.
    "SUSPENDED": "RUNNING",
    "STOPPED": "RUNNING",
    "COMPLETING": "ENDING",
    "STAGE_OUT": "ENDING",
    "COMPLETED": "COMPLETED",
    "CANCELLED": "CANCELLED",
    "FAILED": "FAILED",
    "TIMEOUT": "FAILED",
    "NODE_FAIL": "FAILED",
    "OUT_OF_MEMORY": "FAILED",
    "PREEMPTED": "FAILED",
    "BOOT_FAIL": "FAILED",
    "DEADLINE": "FAILED",
    "REVOKED": "FAILED",
    "RECONFIG_FAIL": "FAILED",
    "UNKNOWN": "UNKNOWN",
} | dict.fromkeys(WAITING_STATES, "PENDING")
"""From Slurm's word for the attempt to the run's; a requeued attempt leaves its run waiting."""


STARTING_S = 600.0
"""A job without any output is no longer starting after so long: some programs say nothing until their end."""


def never_known(reason: str) -> None:
    """A `Never` that knows no reason."""


def run_state(status: AttemptStatus, case: AttemptView, never: Never = never_known) -> tuple[str, str | None]:
    """State and reason of the run whose last attempt has this status, decided from this case."""
    word, reason, output = status.state, status.reason, case.files.output
    live = case.live
    if case.requeued and case.record is not None:
        # The next attempt's folder appears when the job runs again; until then this is all there is of it.
        word, reason, output = case.record.state, case.record.reason or reason, False
        if word == "COMPLETED":
            return "FAILED", f"{reason}, and it ended without a record of its new start"
    state = STATES.get(word, "UNKNOWN")
    taken_back = _taken_back(case) if state == "CANCELLED" else None
    if taken_back is not None:
        return "FAILED", f"the job got {taken_back} and was ended before its script began: a failing Prolog does this"
    if state == "RUNNING" and word not in ("SUSPENDED", "STOPPED") and not output:
        started = case.record.started if case.requeued and case.record else case.started
        early = started is None or case.now - started < STARTING_S
        return "STARTING" if early else "RUNNING", reason or "no output yet"
    if word in ("SUSPENDED", "STOPPED"):
        return state, "suspended by the cluster; it goes on by itself"
    if state == "PENDING" and live is not None:
        advice = never(live.reason) if live.reason else None
        if advice is not None:
            return "STUCK", f"{live.reason}: {advice}".replace("JOBID", live.job_id)
        if word != "PENDING":
            reason = f"{word}{f' ({reason})' if reason else ''}"
    return state, reason


def with_verdict(state: str, reason: str | None, decided: VerdictRecord | None) -> tuple[str, str | None]:
    """State and reason of a run whose last attempt is over, after the verdict on it."""
    if decided is None or state not in FINAL_RUN_STATES:
        return state, reason
    before = f"{reason}; " if reason else ""
    if decided.again:
        return "RETRYING", f"{before}another attempt follows: {decided.reason}"
    if decided.withdrawn:
        return "STOPPED", f"it could never start, and was taken out of the queue: {decided.reason}"
    if state == "FAILED":
        return state, f"{before}no other attempt: {decided.reason}"
    return state, reason


def _taken_back(case: AttemptView) -> str | None:
    """The nodes that the scheduler gave the job and took back by itself before its script began; None otherwise.

    That is what Slurm does with `--no-requeue` when a node cannot start the job (seen with 22.05); `squeue` and
    `sacct` call it CANCELLED.
    """
    files, record = case.files, case.last_word or case.record
    if record is None or files.claim is not None or files.start is not None or files.cancel is not None:
        return None
    return record.nodes
