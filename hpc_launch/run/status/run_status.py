"""The state of a run as every view, verb and driver sees it: frozen, and never more certain than its sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUN_STATES = (
    "SUBMITTING", "PENDING", "STUCK", "STARTING", "RUNNING", "ENDING", "RETRYING",
    "COMPLETED", "FAILED", "STOPPED", "CANCELLED", "UNKNOWN",
)  # fmt: skip
"""The words for a run; an attempt has Slurm's own word."""

FINAL_RUN_STATES = frozenset({"COMPLETED", "FAILED", "STOPPED", "CANCELLED"})
"""A run in one of these changes only when a person acts."""

STATE_SOURCES = ("end_record", "squeue", "sacct", "scontrol", "local", "none")


@dataclass(frozen=True)
class Prepared:
    """A job that passed all checks, as text and data ready to be put on disk and submitted: what `drive` and the
    verbs hand to `run`."""

    name: str
    """The job's own name: `[A-Za-z0-9][A-Za-z0-9._-]*`, at most 64 characters."""
    site: str
    scheduler: str
    """`slurm` or `local`."""
    runs_folder: Path
    """Where run folders go: shared storage on a cluster."""
    job_yaml: str
    resolved_yaml: str
    site_yaml: str
    script: str
    plan: Mapping[str, Any]
    """The launch plan as JSON data; `plan["progress"]` holds the regular expressions of the job file."""
    options: tuple[str, ...] = ()
    """Options of this attempt alone for sbatch, such as `--exclude=n3`."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the job file in this attempt (`--set`, `--exclude`), for the record."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class AttemptStatus:
    """One attempt: a submission, or a requeue of the same job id by Slurm. Times are seconds since the epoch."""

    number: int
    folder: Path
    job_id: str | None
    state: str
    """Slurm's own word; `SUBMITTING` before a job id is known, `VOID` when it was never submitted and never will be."""
    source: str
    age_s: float | None
    reason: str | None = None
    exit_code: int | None = None
    nodes: tuple[str, ...] = ()
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    failure_class: str | None = None
    """One of spec.failures; None while nobody has diagnosed it."""
    verdict: str | None = None
    evidence: tuple[Mapping[str, Any], ...] = ()
    """Objects with `file`, `line` and `text`."""


@dataclass(frozen=True)
class Progress:
    """What the training's own log lines say; None is 'not known'. `rate` is steps a second, `eta_s` seconds, `spacing`
    how many steps lie between the last two lines that show one."""

    step: int | None = None
    total: int | None = None
    loss: float | None = None
    rate: float | None = None
    eta_s: float | None = None
    spacing: int | None = None


@dataclass(frozen=True)
class RunStatus:
    """A run now. `state` is one of RUN_STATES, `source` of STATE_SOURCES, `age_s` how old the source's word is."""

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
    undecided: bool = False
    """Whether the last attempt is over and no driver has said yet what follows."""

    @property
    def final(self) -> bool:
        """Whether only a person changes this state."""
        return self.state in FINAL_RUN_STATES

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
        progress = self.progress
        result["progress"] = {
            "step": progress.step,
            "total": progress.total,
            "loss": progress.loss,
            "rate": progress.rate,
            "eta_s": progress.eta_s,
        }
        return result


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
        "evidence": [dict(quote) for quote in attempt.evidence],
        "overrides": dict(attempt.overrides),
    }
