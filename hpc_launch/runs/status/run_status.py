"""The state of a run as all views, verbs and drivers see it, and how it follows from its last attempt.

Frozen, and never more certain than its sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from hpc_launch.diagnose.diagnosis import Quote
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import RoleStates
from hpc_launch.runs.records.run_info import RunInfo, read_info
from hpc_launch.runs.records.submission import Overrides, ScriptRecord
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.runs.status.attempt_view import WAITING_STATES, AttemptView
from hpc_launch.runs.status.progress_reader import Progress
from hpc_launch.runs.status.startup_summary import Startup
from hpc_launch.schedulers.scheduler import ENDED_STATES, JobRecord
from hpc_launch.schedulers.slurm.slurm_reasons import advice

RUN_STATES = (
    "SUBMITTING", "PENDING", "STUCK", "STARTING", "RUNNING", "ENDING", "RETRYING",
    "COMPLETED", "FAILED", "STOPPED", "CANCELLED", "UNKNOWN",
)  # fmt: skip
"""The states of a run; an attempt has Slurm's own state."""

FINAL_RUN_STATES = frozenset({"COMPLETED", "FAILED", "STOPPED", "CANCELLED"})
"""A run in one of these states changes only when a user acts."""

STATE_SOURCES = ("end_record", "squeue", "sacct", "scontrol", "local", "ssh", "scheduler", "none")


@dataclass(frozen=True)
class AttemptStatus:
    """One attempt: a submission, or a requeue of the same job id by Slurm. Times are seconds since the epoch."""

    number: int
    folder: Path
    job_id: str | None
    state: str
    """Slurm's state; `SUBMITTING` before a job id is known, `VOID` if no job was or ever will be submitted."""
    source: str
    age_s: float | None
    reason: str | None = None
    exit_code: int | None = None
    nodes: tuple[str, ...] = ()
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    overrides: Overrides = field(default_factory=Overrides)
    failure_class: str | None = None
    """One of FAILURE_CLASSES; None while it has not been diagnosed."""
    verdict: str | None = None
    evidence: tuple[Quote, ...] = ()


@dataclass(frozen=True)
class RunStatus:
    """A run now. `state` is one of RUN_STATES, `source` of STATE_SOURCES; `age_s` is the age of the source's answer."""

    run: str
    name: str
    site: str
    folder: Path
    state: str
    reason: str | None
    job_id: str | None = None
    source: str = "none"
    age_s: float | None = None
    attempts: tuple[AttemptStatus, ...] = ()
    progress: Progress = field(default_factory=Progress)
    startup: Startup | None = None
    """How far the start is, until the log shows a step; None where nothing is known of it."""
    undecided: bool = False
    """Whether the last attempt is over and no driver has decided yet what follows."""
    cancel_due: bool = False
    """Whether a driver is to cancel a job: see `AttemptView.cancel_due`."""
    pause_until: float | None = None
    """Until when the next attempt waits because a verdict asks for a pause, in seconds since the epoch."""
    expected_start: float | None = None
    """The scheduler's estimate for a pending job, in seconds since the epoch."""
    successor: JobRecord | None = None
    """The job that waits for the end of the newest one and takes over if that ends before the run does."""
    roles: RoleStates | None = None
    """What each role of the newest attempt does, in a job with several."""
    warnings: tuple[str, ...] = ()
    """What a user should know while the run is active."""
    hosts: tuple[str, ...] = ()
    """The hosts of the active attempt on a site without Slurm, with its spares."""
    folder_missing: bool = False
    """Whether the run folder was moved or deleted."""
    final_stamp: int | None = None
    """When the folder of the attempts was last modified (ns), where only a new attempt or a driver's decision can
    change this status."""

    @property
    def final(self) -> bool:
        """Whether only a user can change this state."""
        return self.state in FINAL_RUN_STATES

    @property
    def last(self) -> AttemptStatus | None:
        """The newest attempt; None before the first."""
        return self.attempts[-1] if self.attempts else None

    @property
    def settled(self) -> bool:
        """Whether only a new attempt can change this status."""
        return self.final_stamp is not None and not self.undecided

    def as_json(self, *, attempts: bool = True) -> dict[str, Any]:
        """The object of `status --json` (docs/reference/json.md); `list --json` leaves the attempts out."""
        names = ("run", "name", "site", "state", "reason", "job_id")
        result: dict[str, Any] = {name: getattr(self, name) for name in names}
        result |= {"state_source": self.source, "state_age_s": self.age_s}
        if attempts:
            result["attempts"] = [_attempt_json(attempt) for attempt in self.attempts]
        result["progress"] = {name: getattr(self.progress, name) for name in ("step", "total", "loss", "rate", "eta_s")}
        if self.roles is not None:
            result["roles"] = self.roles.as_json()
        if self.hosts:
            result["hosts"] = list(self.hosts)
        if self.successor is not None:
            result["successor"] = {"job_id": self.successor.job_id, "state": self.successor.state}
        if self.startup is not None:
            result["phase"] = self.startup.phase
            result["waiting_for"] = list(self.startup.waiting_for)
        return result


def successor_text(job: JobRecord) -> str:
    """`it continues in job 12, which waits in the queue`."""
    return f"it continues in job {job.job_id}" + (", which waits in the queue" if job.state == "PENDING" else "")


def _attempt_json(attempt: AttemptStatus) -> dict[str, Any]:
    names = ("number", "job_id", "state", "exit_code", "nodes", "submitted", "started", "ended")
    return {name: to_builtins(getattr(attempt, name)) for name in names} | {
        "class": attempt.failure_class,
        "verdict": attempt.verdict,
        "evidence": to_builtins(attempt.evidence),
        "overrides": to_builtins(attempt.overrides),
    }


STATE_ORDER = (
    "RUNNING", "STARTING", "ENDING", "RETRYING", "SUBMITTING", "PENDING", "STUCK", "UNKNOWN",
    "FAILED", "STOPPED", "CANCELLED", "COMPLETED",
)  # fmt: skip
"""A group has the first of these states that one of its parts has."""


def status_of(run: RunFolder, info: RunInfo | None, state: str, reason: str | None, **known: Any) -> RunStatus:
    """The status of the folder `run`, with what its run.json says. `known`: further fields."""
    name, site = (info.name, info.site) if info is not None else (run.name, "")
    return RunStatus(run=run.name, name=name, site=site, folder=run.path, state=state, reason=reason, **known)


def group_status(run: RunFolder, state: str, reason: str | None, parts: Sequence[RunStatus], **known: Any) -> RunStatus:
    """The status of a group. Its source is that of a part in the same state, its age that of the oldest."""
    source = next((one.source for one in parts if one.state == state), "none")
    age_s = max((one.age_s for one in parts if one.age_s is not None), default=None)
    return status_of(run, read_info(run), state, reason, source=source, age_s=age_s, **known)


_BY_STATE = {
    "SUBMITTING": {"SUBMITTING"},
    "PENDING": WAITING_STATES,
    "STARTING": {"CONFIGURING", "POWER_UP_NODE"},
    # Suspended or stopped by an administrator: the training stays in memory and continues by itself.
    "RUNNING": {"RUNNING", "RESIZING", "SIGNALING", "UPDATE_DB", "SUSPENDED", "STOPPED"},
    "ENDING": {"COMPLETING", "STAGE_OUT"},
    "STOPPED": {"VOID"},
    "COMPLETED": {"COMPLETED"},
    "CANCELLED": {"CANCELLED"},
    "FAILED": {*ENDED_STATES, "RECONFIG_FAIL"} - {"COMPLETED", "CANCELLED"},
    "UNKNOWN": {"UNKNOWN"},
}
STATES = {of_attempt: state for state, several in _BY_STATE.items() for of_attempt in several}
"""The run's state by Slurm's state of the attempt. A requeued attempt leaves its run pending."""


STARTING_S = 600.0
"""A job without output counts as starting for so long: some programs print nothing until their end."""


def run_state(status: AttemptStatus, view: AttemptView) -> tuple[str, str | None]:
    """State and reason of the run whose last attempt has this status."""
    state_of_job, reason, output = status.state, status.reason, view.files.output
    live = view.live
    if view.requeued and view.record is not None:
        # The folder of the next attempt is created when the job runs again; until then only the scheduler knows it.
        state_of_job, reason, output = view.record.state, view.record.reason or reason, False
        if state_of_job == "COMPLETED":
            return "FAILED", f"{reason}, and it ended without a record of its new start"
    state = STATES.get(state_of_job, "UNKNOWN")
    revoked = revoked_nodes(view) if state == "CANCELLED" else None
    if revoked is not None:
        return "FAILED", f"the job got {revoked} and was ended before its script began: a failing Prolog does this"
    if state == "FAILED" and view.files.cancel is not None:
        # The request was recorded before the attempt ended, however it did: by the cancellation or just before it.
        return "CANCELLED", f"{view.cancelled_by}; {reason}" if reason else view.cancelled_by
    if state == "RUNNING" and state_of_job not in ("SUSPENDED", "STOPPED") and not output:
        started = view.record.started if view.requeued and view.record else view.started
        early = started is None or view.now - started < STARTING_S
        return "STARTING" if early else "RUNNING", reason or "no output yet"
    if state_of_job in ("SUSPENDED", "STOPPED"):
        return state, "suspended by the cluster; it continues by itself"
    if state == "PENDING" and live is not None:
        found = advice(live.reason, live.job_id)
        if found is not None:
            return "STUCK" if found.never else state, f"{live.reason}: {found}"
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


def revoked_nodes(view: AttemptView) -> str | None:
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

    Checked in this order: an exit code other than 0 (no); the training's own statement, the file HPC_LAUNCH_DONE_FILE,
    or its own word for an early end (yes); the last step in its log or its newest checkpoint against the total. A log
    that shows every tenth step ends short of the last one, so steps count as missing only where another line was due.
    Without any of these, an exit without a warning counts as finished, unless the job says how its log shows steps and
    where its checkpoints are, and there is none of either.
    """
    if end is None or end.exit_code != 0:
        return False
    if end.finished or (progress.said is not None and not end.warned):
        return True
    steps = [step for step in (progress.step, end.saved_step) if step is not None]
    if progress.total is None or not steps:
        nothing = not steps and progress.unmatched and progress.saves and end.resumed_step is None
        return None if end.warned else not nothing
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
    if progress.unmatched and not step:
        shown = "progress.step matches no line of its log, and it saved no checkpoint"
        return f"the training ended with exit code 0, but {shown}: nothing shows that it trained"
    how = "after the warning " if end.warned else ""
    return f"the training ended {how}with exit code 0 at step {step} of {progress.total}: it is not finished"
