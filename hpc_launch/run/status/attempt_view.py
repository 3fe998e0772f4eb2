"""Everything that the state of one attempt is decided from, gathered into one value for the rules of observe.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpc_launch.run.records import values
from hpc_launch.run.records.attempt_files import AttemptFiles
from hpc_launch.run.records.final_state import record_of
from hpc_launch.schedulers.scheduler import ENDED_STATES, LIVE_STATES, JobRecord

WAITING_STATES = frozenset(
    "PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD LAUNCH_FAILED EXPEDITING".split()
)
"""Slurm's words for a job that holds no nodes and waits, for the first time or again."""

DISTURBED_CODES = frozenset({129, 130, 137, 143})
"""What a shell ends with when HUP, INT, KILL or TERM ended its child: by whom, only the scheduler knows."""

WARNINGS = frozenset({"USR1", "SIGUSR1", "USR2", "SIGUSR2", "CONT", "SIGCONT"})
"""Signals that announce an end, and do not make one."""


@dataclass(frozen=True)
class SchedulerAnswer:
    """What the scheduler last said of one job. Times are seconds since the epoch."""

    record: JobRecord | None = None
    """The newest record; None where no source knows the job, or none was asked."""
    answered: float | None = None
    """When the scheduler last answered a question about the job, be it with 'not known'."""
    error: str | None = None
    """Why it does not answer now."""
    last_seen: str | None = None
    """The last word on a job that is no longer known."""


@dataclass(frozen=True)
class SourceLags:
    """How long the sources may lag behind one another, in seconds."""

    settle: float = 1.0
    """After this the job's own end record counts although the scheduler has not confirmed it yet."""
    end_record: float = 30.0
    """So late may an end record appear on this machine after the scheduler said COMPLETED (file server lag)."""
    stale: float = 60.0
    """A scheduler that still says RUNNING so long after the end record contradicts it."""


@dataclass(frozen=True)
class AttemptView:
    """One attempt at one moment.

    Attributes:
        files: The attempt's own files.
        answer: What the scheduler said of its job.
        now: The moment.
        superseded: A later attempt belongs to the same job, which Slurm requeued.
        submitting: Why there is no job id yet, in words.
    """

    files: AttemptFiles
    answer: SchedulerAnswer
    now: float
    superseded: bool = False
    submitting: str | None = None
    limits: SourceLags = field(default_factory=SourceLags)

    @property
    def job_id(self) -> str | None:
        """The attempt's job."""
        return self.files.job_id

    @property
    def record(self) -> JobRecord | None:
        """The scheduler's record, where it is one of this job and not of a start before this attempt's."""
        record = self.answer.record
        if record is None or record.job_id != self.job_id:
            return None
        name = self.files.intent.get("job_name") if self.files.intent else None
        if name is not None and record.name is not None and record.name != name:
            return None  # ids are used again when a cluster is set up anew
        return None if record.restarts is not None and record.restarts < self.files.restart else record

    @property
    def requeued(self) -> bool:
        """Whether the job was put back into the queue, so that this attempt is over whatever becomes of the job."""
        record = self.record
        if self.superseded or record is None:
            return self.superseded
        if record.restarts is not None:
            return record.restarts > self.files.restart
        # Without a count: it waits although it ran. An answer from before its start does not show that.
        ran = self.ended if self.ended is not None else self.started
        return record.state in WAITING_STATES and ran is not None and record.as_of > ran + self.limits.end_record

    @property
    def last_word(self) -> JobRecord | None:
        """The scheduler's record of this attempt's end: as it was kept, else as it stands."""
        kept = record_of(self.files.final)
        if kept is not None and kept.job_id == self.job_id:
            return kept
        record = self.record
        if record is None or record.state not in ENDED_STATES or self.requeued:
            return None
        # Accounting that has just come back says FAILED with 0:0 and no end until it has caught up.
        return None if record.source == "sacct" and record.ended is None else record

    @property
    def live(self) -> JobRecord | None:
        """The record of a job that is not over."""
        record = self.record
        return record if record is not None and record.state in LIVE_STATES else None

    @property
    def end(self) -> Mapping[str, Any] | None:
        """The end record, where it is one of this job and this start and says how it ended."""
        end = self.files.end
        if end is None or values.text(end.get("job_id")) != self.job_id or self.job_id is None:
            return None
        restart = values.whole(end.get("restart"))
        if values.whole(end.get("exit_code")) is None or restart not in (None, self.files.restart):
            return None
        return end

    @property
    def exit_code(self) -> int | None:
        """The exit code in the end record."""
        return values.whole(self.end.get("exit_code")) if self.end is not None else None

    @property
    def signal(self) -> str | None:
        """The signal that ended the script, by its end record; a mere warning is none."""
        signal = values.text(self.end.get("signal")) if self.end is not None else None
        return None if signal is None or signal.upper() in WARNINGS else signal.upper().removeprefix("SIG")

    @property
    def disturbed(self) -> bool:
        """Whether somebody may have ended the script from outside: then only the scheduler knows who and why."""
        return self.signal is not None or self.exit_code in DISTURBED_CODES or self.files.cancel is not None

    @property
    def started(self) -> float | None:
        """When the script began, by its own record."""
        for data, key in ((self.files.start, "started"), (self.files.end, "started")):
            if data is not None and values.seconds(data.get(key)) is not None:
                return values.seconds(data.get(key))
        return None

    @property
    def ended(self) -> float | None:
        """When the script ended, by its own record."""
        return values.seconds(self.end.get("ended")) if self.end is not None else None
