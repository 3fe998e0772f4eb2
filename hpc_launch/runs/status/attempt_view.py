"""All facts that decide the state of an attempt, as one value for the rules of attempt_state.py."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_launch.runs.records.attempt_files import AttemptFiles
from hpc_launch.runs.records.submission import ScriptRecord
from hpc_launch.schedulers.scheduler import ENDED_STATES, LIVE_STATES, JobRecord

WAITING_STATES = frozenset(
    "PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD LAUNCH_FAILED EXPEDITING".split()
)
"""Slurm's states of a job that waits without nodes, for the first time or again."""

DISTURBED_CODES = frozenset({129, 130, 137, 143})
"""Exit codes of a shell whose child was ended by HUP, INT, KILL or TERM. Only the scheduler knows who sent it."""

WARNINGS = frozenset({"USR1", "SIGUSR1", "USR2", "SIGUSR2", "CONT", "SIGCONT"})
"""Signals that only announce an end."""


@dataclass(frozen=True)
class SchedulerAnswer:
    """The scheduler's last answer about one job. Times are seconds since the epoch."""

    record: JobRecord | None = None
    """The newest record; None where no source knows the job, or none was queried."""
    answered: float | None = None
    """When the scheduler last answered a query about the job, even with 'not known'."""
    error: str | None = None
    """Why it does not answer at present."""
    last_seen: str | None = None
    """The last known state of a job that is no longer known."""


SETTLE_S = 1.0
"""After this the job's own end record counts even if the scheduler has not confirmed it."""
END_RECORD_S = 30.0
"""How late an end record may appear after the scheduler reports COMPLETED (file server lag)."""
STALE_S = 60.0
"""A scheduler that still reports RUNNING this long after the end record contradicts it."""
CANCEL_S = 60.0
"""A job that is still alive so long after Slurm accepted its cancellation is cancelled again."""


@dataclass(frozen=True)
class AttemptView:
    """One attempt at one point in time.

    Attributes:
        files: The attempt's records.
        answer: The scheduler's answer about its job.
        now: That time, in seconds since the epoch.
        superseded: A later attempt belongs to the same job.
        continued: A later attempt belongs to the same start of the job: it began when this one had ended.
        submitting: Why there is no job id yet, as text.
    """

    files: AttemptFiles
    answer: SchedulerAnswer
    now: float
    superseded: bool = False
    continued: bool = False
    submitting: str | None = None
    settle_s: float = SETTLE_S

    @property
    def job_id(self) -> str | None:
        """The attempt's job."""
        return self.files.job_id

    @property
    def record(self) -> JobRecord | None:
        """The scheduler's record, where it is of this job and not of an earlier start of it."""
        record = self.answer.record
        if record is None or record.job_id != self.job_id:
            return None
        name = self.files.intent.job_name if self.files.intent else None
        if name is not None and record.name is not None and record.name != name:
            return None  # a cluster that is set up again reuses job ids
        if record.restarts is not None and record.restarts < self.files.restart:
            return None
        return self.files.concerns(record)

    @property
    def requeued(self) -> bool:
        """Whether Slurm requeued the job: this attempt is over, whatever becomes of the job."""
        record = self.record
        if self.superseded or record is None:
            return self.superseded and not self.continued
        if record.restarts is not None:
            return record.restarts > self.files.restart
        # Without a restart count: the job waits although it ran. An answer from before its start does not show that.
        ran = self.ended if self.ended is not None else self.started
        return record.state in WAITING_STATES and ran is not None and record.as_of > ran + END_RECORD_S

    @property
    def final_record(self) -> JobRecord | None:
        """The scheduler's record of this attempt's end: final.json, else the current record.

        A job's end is that of its last attempt.
        """
        if self.continued:
            return None
        kept = self.files.final
        if kept is not None and kept.job_id == self.job_id and kept.state in ENDED_STATES:
            return kept
        record = self.record
        if record is None or record.state not in ENDED_STATES or self.requeued:
            return None
        # Until accounting has caught up after an outage it reports FAILED with 0:0 and no end.
        return None if record.source == "sacct" and record.ended is None else record

    @property
    def over(self) -> bool:
        """Whether the attempt is void or has ended, by any record."""
        return self.files.void is not None or self.final_record is not None or self.end is not None

    @property
    def live(self) -> JobRecord | None:
        """The record of a job that has not ended."""
        record = self.record
        return record if record is not None and record.state in LIVE_STATES and not self.continued else None

    @property
    def abandoned(self) -> bool:
        """Whether the job runs without its first node, which ran the script: it would do so until its time limit."""
        live = self.live
        return live is not None and live.state == "RUNNING" and self.files.lost_first(live)

    @property
    def end(self) -> ScriptRecord | None:
        """The end record of this job and this restart."""
        return self.files.own_end

    @property
    def exit_code(self) -> int | None:
        """The exit code in the end record."""
        return self.end.exit_code if self.end is not None else None

    @property
    def signal(self) -> str | None:
        """The signal that ended the script, by its end record; a warning does not count."""
        signal = self.end.signal if self.end is not None else None
        return None if signal is None or signal.upper() in WARNINGS else signal.upper().removeprefix("SIG")

    @property
    def disturbed(self) -> bool:
        """Whether the script may have been ended from outside: then only the scheduler knows by whom and why."""
        return self.signal is not None or self.exit_code in DISTURBED_CODES or self.files.cancel is not None

    @property
    def cancel_due(self) -> bool:
        """Whether the job is to be cancelled: a user's cancellation did not reach the scheduler, or it is abandoned.

        The scheduler answers now and says that the job is alive.
        """
        request, live = self.files.cancel, self.live
        if live is None or self.superseded or self.answer.error is not None:
            return False
        if request is None:
            return self.abandoned
        if live.state == "COMPLETING" or live.as_of <= (request.time or 0.0):
            return False
        return request.sent is None or live.as_of - request.sent > CANCEL_S

    @property
    def cancelled_by(self) -> str:
        """Who cancelled the attempt with hpc-launch, as text."""
        by = self.files.cancel.by if self.files.cancel is not None else None
        return f"cancelled by {by}" if by else "cancelled"

    @property
    def warned(self) -> bool:
        """Whether the script ended after a warning."""
        return self.end is not None and self.end.warned

    @property
    def submitted(self) -> float | None:
        """When the job was submitted."""
        return self.files.job.submitted if self.files.job is not None else None

    @property
    def started(self) -> float | None:
        """When the script began, by its own records."""
        times = [record.started for record in (self.files.start, self.files.end) if record is not None]
        return next((time for time in times if time is not None), None)

    @property
    def ended(self) -> float | None:
        """When the script ended, by its own record."""
        return self.end.ended if self.end is not None else None
