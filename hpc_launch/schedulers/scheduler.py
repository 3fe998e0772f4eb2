"""What a scheduler takes and gives, whichever it is: the seam between runs and the machines they run on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

LIVE_STATES = frozenset(
    "PENDING RUNNING SUSPENDED COMPLETING CONFIGURING RESIZING SIGNALING STAGE_OUT STOPPED REQUEUED REQUEUE_FED "
    "REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD EXPEDITING LAUNCH_FAILED POWER_UP_NODE RECONFIG_FAIL UPDATE_DB".split()
)
"""Slurm's words for a job that may still run (job_state_codes, Slurm 26.05)."""

ENDED_STATES = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY PREEMPTED BOOT_FAIL DEADLINE REVOKED".split()
)
"""Slurm's words for a job that is over. PREEMPTED and NODE_FAIL may be followed by a requeue of the same id."""


@dataclass(frozen=True)
class Submission:
    """A finished script and what differs from attempt to attempt, which goes on the command line."""

    script: str
    folder: Path
    """The attempt's folder: the script's first argument; its batch log and Submitit's files go there."""
    job_name: str
    """`NAME.TOKEN.N`: the token finds the job again when sbatch gave no answer."""
    options: tuple[str, ...] = ()
    """More options for this attempt alone, such as `--exclude=n3`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the job that must stand in no file: secrets."""

    @property
    def batch_log(self) -> Path:
        """Where the batch shell's own output goes."""
        return self.folder / "batch.log"


@dataclass(frozen=True)
class JobRecord:
    """What one source said of one job. Times are seconds since the epoch; None is 'not known'."""

    job_id: str
    state: str
    """Slurm's base word, upper case, without 'by 1000' or a trailing '+'."""
    source: str
    """`squeue`, `sacct`, `scontrol` or `local`."""
    as_of: float
    """When the source was asked."""
    name: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    derived_exit_code: int | None = None
    """The highest exit code of the job's steps; from sacct only."""
    nodes: str | None = None
    """Slurm's host list, such as `n[1-4]`; None before the job got nodes."""
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    restarts: int | None = None
    steps: tuple[tuple[str, str, str], ...] = ()
    """(step, state, exit code as printed) of each step; from sacct only."""

    @property
    def ended_for_good(self) -> bool:
        """Whether Slurm calls the job over (a requeue may still bring it back)."""
        return self.state in ENDED_STATES


class Scheduler(Protocol):
    """Slurm, or this machine. Every method ends in bounded time."""

    def submit(self, submission: Submission) -> str:
        """Submit, and hand back the job id. Raises SubmitRefused (NotWritten for a file) or SubmitUnknown."""

    def test_only(self, submission: Submission) -> str:
        """The scheduler's own word on when and where this would start. Raises SubmitRefused, Unreachable."""

    def find(self, job_name: str) -> list[JobRecord]:
        """All jobs of this user with this exact name, live or ended. Raises Unreachable when that cannot be told."""

    def query(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        """What is known of these jobs: one batched call, and at most one in 10 s whoever asks (a file shared by
        this user's processes keeps the last answer). `fresh` asks at once all the same (a person's own command
        after a change of theirs). Ids that no source knows are left out. Raises Unreachable."""

    def warn(self, job_id: str, *, preempt: bool = False) -> None:
        """Warn a job as before its time limit, or as a preemption does that signals its steps. Raises Unreachable."""

    def cancel(self, job_id: str) -> None:
        """End a job. One that is over already is no error. Raises Unreachable."""

    def preempted(self, job_id: str) -> bool:
        """Whether the scheduler is ending the job for the sake of another; false where it cannot tell."""

    def cluster(self) -> str | None:
        """The name of the cluster that answers; None where that cannot be told."""

    def down(self, nodes: Sequence[str]) -> dict[str, str]:
        """Those of these nodes that are out of service now, with the scheduler's word; empty where it cannot tell."""

    def size(self, partition: str | None) -> int | None:
        """How many nodes a partition has, the default one for None; None where that cannot be told."""
