"""The scheduler interface: submit, query and cancel jobs, and what may keep a job from starting; schedulers by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from hpc_launch.base.errors import Unreachable, UsageError
from hpc_launch.schedulers.job_files import BATCH_LOG

Scope = Literal["job", "node", "user", "account", "group"]


class Limit(Struct, frozen=True):
    """One limit. `resource` is Slurm's name (`node`, `cpu`, `gres/gpu`), `wall` (seconds), `jobs` or `submitted`."""

    owner: str
    """Whose limit it is, such as `QOS normal`."""
    name: str
    """Slurm's name of the limit, such as `MaxTRES`."""
    scope: Scope
    """What `amount` is for: each job, each node of a job, or all jobs together of a user, account or group."""
    resource: str
    amount: int
    least: bool = False
    """Whether `amount` is the minimum."""
    used: int | None = None
    """For `jobs` and `submitted`: how many the user has; None if unknown."""


class QueueLimits(Struct, frozen=True):
    """The limits that apply to a job."""

    limits: tuple[Limit, ...] = ()
    problems: tuple[str, ...] = ()
    """Why the job can never start."""
    notes: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    """What could not be asked, with the reason."""


class Balance(Struct, frozen=True):
    """The budget of an account, in hours of one unit of the resource."""

    account: str
    resource: str
    """Slurm's name, such as `gres/gpu`."""
    limit_h: float
    used_h: float


class ArrayRoom(Struct, frozen=True):
    """What bounds the job arrays of a user."""

    max_array_size: int
    """Task numbers end below it (MaxArraySize)."""
    queued: int
    """The user's jobs and tasks that wait or run in the partition."""
    more: int | None = None
    """How many more jobs and tasks the limits of Slurm accept now; None for no known limit."""


class Reservation(Struct, frozen=True):
    """A reservation of nodes. Times are seconds since the epoch."""

    name: str
    start: float
    end: float
    nodes: frozenset[str]
    flags: tuple[str, ...] = ()


class Reservations(Struct, frozen=True):
    """All reservations of nodes, and the nodes of the partition that they may take."""

    nodes: frozenset[str] = frozenset()
    reservations: tuple[Reservation, ...] = ()
    unread: tuple[str, ...] = ()
    """Names of reservations whose times are not understood."""


LIVE_STATES = frozenset(
    "PENDING RUNNING SUSPENDED COMPLETING CONFIGURING RESIZING SIGNALING STAGE_OUT STOPPED REQUEUED REQUEUE_FED "
    "REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD EXPEDITING LAUNCH_FAILED POWER_UP_NODE RECONFIG_FAIL UPDATE_DB".split()
)
"""Slurm's states of a job that may still run (job_state_codes, Slurm 26.05)."""

ENDED_STATES = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY PREEMPTED BOOT_FAIL DEADLINE REVOKED".split()
)
"""Slurm's states of a job that has ended. A requeue under the same id may follow PREEMPTED and NODE_FAIL."""


@dataclass(frozen=True)
class Submission:
    """A job script and its per-attempt options, which are passed on the command line."""

    script: str
    folder: Path
    """The attempt folder: the script's first argument, and where the batch log and Submitit's files go."""
    job_name: str
    """`NAME.TOKEN.N`: the token identifies the job if sbatch gives no answer."""
    options: tuple[str, ...] = ()
    """Extra sbatch options of this attempt, such as `--exclude=n3`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Secrets: environment variables of the job that must not be written to any file."""
    time_limit_s: float | None = None
    array: str = ""
    """The tasks of a job array, as for `sbatch --array`."""
    signal_before_s: float | None = None
    """Both are also in the script's directives, which the local scheduler does not read."""

    @property
    def batch_log(self) -> Path:
        """The log of the batch script. Those of the tasks of an array are FOLDER/TASK.log."""
        return self.folder / BATCH_LOG


class JobRecord(Struct, frozen=True):
    """The state of a job by one source, as in final.json. Times are seconds since the epoch; None means unknown."""

    job_id: str
    state: str
    """Slurm's base state in upper case, without 'by 1000' or a trailing '+'."""
    source: str = "none"
    """`squeue`, `sacct`, `local` or `ssh`; of earlier releases also `scontrol`."""
    as_of: float = 0.0
    """When the source was queried."""
    name: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    derived_exit_code: int | None = None
    """The highest exit code of the job's steps; only from sacct."""
    nodes: str | None = None
    """Slurm's host list, such as `n[1-4]`; None before nodes are allocated."""
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    expected_start: float | None = None
    """The scheduler's estimate for a pending job."""
    restarts: int | None = None
    steps: tuple[tuple[str, str, str], ...] = ()
    """(step, state, exit code as printed) of each step; only from sacct."""

    @property
    def ended_for_good(self) -> bool:
        """Whether Slurm reports the job as ended (a requeue may still follow)."""
        return self.state in ENDED_STATES


class PartlyUnreachable(Unreachable):
    """Some jobs could not be queried: `errors` says why, by id. `records` are the answers about the others."""

    def __init__(self, records: Mapping[str, JobRecord], errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(errors.values())))
        self.records, self.errors = records, errors


class Cancelling(Protocol):
    """What cancelling a run needs of a scheduler."""

    def find(self, job_name: str) -> list[JobRecord]:
        """All jobs of this user with exactly this name, active or ended. Raises Unreachable if that is unknown."""

    def query(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        """The records of these jobs; unknown ids are omitted. Raises Unreachable, or PartlyUnreachable if
        only some of the jobs can be queried.

        One batched query, at most every 10 s per user: a file shared by the user's processes caches the answer.
        `fresh` bypasses the limit, for a user's own command after a change.
        """

    def cancel(self, job_id: str) -> None:
        """Cancel a job. Cancelling an ended job is not an error. Raises Unreachable."""


class Scheduler(Cancelling, Protocol):
    """Slurm, hosts reached by ssh, or the local machine. Every method returns in bounded time.

    The answers given here are those of a scheduler without a queue, in which jobs start at once.
    """

    def submit(self, submission: Submission) -> str:
        """Submit the job and return its id. Raises SubmitRefused (NotWritten for a file error) or SubmitUnknown."""

    def test_only(self, submission: Submission) -> str:
        """The scheduler's estimate of when and where the job would start. Raises SubmitRefused, Unreachable."""

    def must_wait(self, script: str, run_folder: Path) -> str | None:  # noqa: ARG002
        """Why the job could not start now and has no queue to wait in, as text; None where it can or has."""
        return None

    def warn(self, job_id: str, *, preempt: bool = False) -> None:
        """Send the signal that precedes the time limit or, with `preempt`, a preemption. Raises Unreachable."""

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """Let a pending job use none of these nodes. Raises Unreachable where that cannot be changed."""
        del job_id, nodes

    def preempted(self, job_id: str) -> bool:  # noqa: ARG002
        """Whether the scheduler is preempting the job; False if unknown."""
        return False

    def cluster(self) -> str | None:
        """The name of the cluster; None if unknown."""
        return None

    def down(self, nodes: Sequence[str]) -> dict[str, str]:  # noqa: ARG002
        """Those of these nodes that are out of service, with their state; empty if unknown."""
        return {}

    def known(self, nodes: Sequence[str]) -> frozenset[str]:  # noqa: ARG002
        """Which of these names are nodes of the cluster; none if the scheduler does not answer. Each is one plain
        name."""
        return frozenset()

    def pending_reasons(self, partition: str | None) -> dict[str, int]:  # noqa: ARG002
        """How many jobs of all users wait in a partition, by reason; empty if unknown."""
        return {}

    def limits(self, account: str | None, partition: str | None, qos: str | None) -> QueueLimits:  # noqa: ARG002
        """The limits of a job of this user with these options. Raises Unreachable."""
        return QueueLimits()

    def array_room(self, account: str | None, partition: str | None, qos: str | None) -> ArrayRoom | None:  # noqa: ARG002
        """What bounds job arrays with these options now; None without job arrays. Raises Unreachable."""
        return None

    def reservations(self, partition: str | None) -> Reservations:  # noqa: ARG002
        """Reservations of nodes, and the nodes of a partition. Raises Unreachable."""
        return Reservations()

    def size(self, partition: str | None) -> int | None:  # noqa: ARG002
        """Number of nodes in a partition (None: the default partition); None if unknown."""
        return None


def scheduler_for(kind: str) -> Scheduler:
    """The scheduler `slurm`, `ssh` or `local` of a site profile, or `allocation` for `hpc-launch run`.

    Raises UsageError for any other name.
    """
    if kind == "slurm":
        from hpc_launch.schedulers.slurm.slurm_scheduler import SlurmScheduler

        return SlurmScheduler()
    if kind in {"local", "allocation"}:
        from hpc_launch.schedulers.local.local_scheduler import LocalScheduler

        return LocalScheduler(in_allocation=kind == "allocation")
    if kind == "ssh":
        from hpc_launch.schedulers.ssh.ssh_scheduler import SshScheduler

        return SshScheduler()
    raise UsageError(f"unknown scheduler {kind!r}", "set the site's scheduler to `slurm`, `ssh` or `local`")
