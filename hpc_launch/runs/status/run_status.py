"""The state of a run as all views, verbs and drivers see it: frozen, and never more certain than its sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from hpc_launch.diagnose.diagnosis import Quote
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.run_info import read_info
from hpc_launch.runs.records.submission import Overrides
from hpc_launch.runs.status.startup_summary import Startup
from hpc_launch.schedulers.scheduler import JobRecord

RUN_STATES = (
    "SUBMITTING", "PENDING", "STUCK", "STARTING", "RUNNING", "ENDING", "RETRYING",
    "COMPLETED", "FAILED", "STOPPED", "CANCELLED", "UNKNOWN",
)  # fmt: skip
"""The states of a run; an attempt has Slurm's own state."""

FINAL_RUN_STATES = frozenset({"COMPLETED", "FAILED", "STOPPED", "CANCELLED"})
"""A run in one of these states changes only when a user acts."""

STATE_SOURCES = ("end_record", "squeue", "sacct", "scontrol", "local", "ssh", "none")


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
class Progress:
    """Progress by the training's own log; None is 'not known'.

    `rate` is in steps per second, `eta_s` in seconds; `spacing` is the number of steps between the last two lines that
    show one.
    """

    step: int | None = None
    total: int | None = None
    loss: float | None = None
    rate: float | None = None
    eta_s: float | None = None
    spacing: int | None = None


@dataclass(frozen=True)
class RunStatus:
    """A run now. `state` is one of RUN_STATES, `source` of STATE_SOURCES; `age_s` is the age of the source's answer."""

    run: str
    name: str
    site: str
    folder: Path
    state: str
    reason: str | None
    job_id: str | None
    source: str
    age_s: float | None
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
    def settled(self) -> bool:
        """Whether only a new attempt can change this status."""
        return self.final_stamp is not None and not self.undecided

    def as_json(self, *, attempts: bool = True) -> dict[str, Any]:
        """The object of `status --json` (docs/json.md); `list --json` leaves the attempts out."""
        result: dict[str, Any] = {
            "run": self.run,
            "name": self.name,
            "site": self.site,
            "state": self.state,
            "reason": self.reason,
            "job_id": self.job_id,
            "state_source": self.source,
            "state_age_s": self.age_s,
        }
        if attempts:
            result["attempts"] = [_attempt_json(attempt) for attempt in self.attempts]
        names = ("step", "total", "loss", "rate", "eta_s")
        result["progress"] = {name: getattr(self.progress, name) for name in names}
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
    return {
        "number": attempt.number,
        "job_id": attempt.job_id,
        "state": attempt.state,
        "exit_code": attempt.exit_code,
        "nodes": list(attempt.nodes),
        "submitted": attempt.submitted,
        "started": attempt.started,
        "ended": attempt.ended,
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


def group_status(
    run: RunFolder,
    state: str,
    reason: str | None,
    parts: Sequence[RunStatus],
    *,
    progress: Progress,
    undecided: bool,
    final_stamp: int | None,
) -> RunStatus:
    """The status of the folder `run`. Its source is that of a part in the same state, its age that of the oldest."""
    info = read_info(run)
    return RunStatus(
        run=run.name,
        name=info.name if info else run.name,
        site=info.site if info else "",
        folder=run.path,
        state=state,
        reason=reason,
        job_id=None,
        source=next((one.source for one in parts if one.state == state), "none"),
        age_s=max((one.age_s for one in parts if one.age_s is not None), default=None),
        progress=progress,
        undecided=undecided,
        final_stamp=final_stamp,
    )
