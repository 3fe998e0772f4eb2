"""Derive the state of a run from its last attempt: a table, and the few cases that need more."""

from __future__ import annotations

from collections.abc import Callable

from hpc_launch.runs.records.submission import ScriptRecord
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.runs.status.attempt_state import cancel_text
from hpc_launch.runs.status.attempt_view import WAITING_STATES, AttemptView
from hpc_launch.runs.status.run_status import FINAL_RUN_STATES, AttemptStatus, Progress

Never = Callable[[str], object | None]
"""What to do about a pending reason that never resolves by itself; None where waiting helps.

Its `str` is shown, with `JOBID` replaced by the job id.
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
    # Suspended by an administrator: the training stays in memory and continues by itself.
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
"""The run's state by Slurm's state of the attempt. A requeued attempt leaves its run pending."""


STARTING_S = 600.0
"""A job without output counts as starting for so long: some programs print nothing until their end."""


def never_known(reason: str) -> None:
    """A `Never` for which every reason may pass."""


def run_state(status: AttemptStatus, view: AttemptView, never: Never = never_known) -> tuple[str, str | None]:
    """State and reason of the run whose last attempt has this status."""
    state_of_job, reason, output = status.state, status.reason, view.files.output
    live = view.live
    if view.requeued and view.record is not None:
        # The folder of the next attempt is created when the job runs again; until then only the scheduler knows it.
        state_of_job, reason, output = view.record.state, view.record.reason or reason, False
        if state_of_job == "COMPLETED":
            return "FAILED", f"{reason}, and it ended without a record of its new start"
    state = STATES.get(state_of_job, "UNKNOWN")
    revoked = _revoked_nodes(view) if state == "CANCELLED" else None
    if revoked is not None:
        return "FAILED", f"the job got {revoked} and was ended before its script began: a failing Prolog does this"
    if state == "FAILED" and view.files.cancel is not None:
        # The request was recorded before the attempt ended, however it did: by the cancellation or just before it.
        return "CANCELLED", f"{cancel_text(view)}; {reason}" if reason else cancel_text(view)
    if state == "RUNNING" and state_of_job not in ("SUSPENDED", "STOPPED") and not output:
        started = view.record.started if view.requeued and view.record else view.started
        early = started is None or view.now - started < STARTING_S
        return "STARTING" if early else "RUNNING", reason or "no output yet"
    if state_of_job in ("SUSPENDED", "STOPPED"):
        return state, "suspended by the cluster; it continues by itself"
    if state == "PENDING" and live is not None:
        advice = never(live.reason) if live.reason else None
        if advice is not None:
            return "STUCK", f"{live.reason}: {advice}".replace("JOBID", live.job_id)
        if state_of_job != "PENDING":
            reason = f"{state_of_job}{f' ({reason})' if reason else ''}"
    return state, reason


def with_verdict(state: str, reason: str | None, verdict: VerdictRecord | None) -> tuple[str, str | None]:
    """State and reason of a run whose last attempt is over, given the verdict on it."""
    if verdict is None or (state not in FINAL_RUN_STATES and state != "UNKNOWN"):
        return state, reason
    before = f"{reason}{verdict.place}; " if reason else ""
    if verdict.again:
        return "RETRYING", f"{before}another attempt follows: {verdict.reason}"
    if verdict.withdrawn:
        return "STOPPED", f"it could never start, and was removed from the queue: {verdict.reason}"
    if state in ("FAILED", "UNKNOWN"):
        return "FAILED", f"{before}no other attempt: {verdict.reason}"
    return state, reason


def _revoked_nodes(view: AttemptView) -> str | None:
    """The nodes that Slurm allocated to the job and revoked before its script began; None otherwise.

    Slurm does so with `--no-requeue` when a node cannot start the job (seen with 22.05). `squeue` and `sacct` report
    CANCELLED.
    """
    files, record = view.files, view.final_record or view.record
    if record is None or files.claim is not None or files.start is not None or files.cancel is not None:
        return None
    return record.nodes


def finished(end: ScriptRecord | None, progress: Progress) -> bool | None:
    """Whether no steps are left after an attempt with this end record; None where nothing tells.

    Checked in this order: an exit code other than 0 (no); the training's own statement, the file HPC_LAUNCH_DONE_FILE
    (yes); the last step in its log or its newest checkpoint against the total. A log that shows every tenth step ends
    short of the last one, so steps count as missing only where another line was due. Without any of these, an exit
    without a warning counts as finished.
    """
    if end is None or end.exit_code != 0:
        return False
    if end.finished:
        return True
    steps = [step for step in (progress.step, end.saved_step) if step is not None]
    if progress.total is None or not steps:
        return None if end.warned else True
    step = max(steps)
    if step >= progress.total:
        return True
    if progress.spacing is not None and step + progress.spacing <= progress.total:
        return False
    return None if end.warned else True


def unfinished(end: ScriptRecord | None, progress: Progress) -> str | None:
    """Why an attempt that exited with 0 is not a success, as text; None where it is one, or nothing tells."""
    if end is None or end.exit_code != 0 or finished(end, progress) is not False:
        return None
    step = max(step for step in (progress.step, end.saved_step, 0) if step is not None)
    how = "after the warning " if end.warned else ""
    return f"the training ended {how}with exit code 0 at step {step} of {progress.total}: it is not finished"
