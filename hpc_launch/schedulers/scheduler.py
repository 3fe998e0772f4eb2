"""The scheduler interface: submit, query and cancel jobs, and what may keep a job from starting; schedulers by name."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast

from msgspec import Struct

from hpc_launch.base.errors import SubmitUnknown, Unreachable, UserError
from hpc_launch.base.files import write_atomic
from hpc_launch.plugins.entry_points import Descriptor, guarded, load, packages_of
from hpc_launch.schedulers.job_files import BATCH_LOG, JOB_ID, JOB_MARKER, SCRIPT

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

    def write_script(self) -> Path:
        """Write the script to the attempt folder unless it is there. Raises OSError, UnicodeError."""
        path, text = self.folder / SCRIPT, self.script.encode("utf-8", "surrogateescape")
        if not os.path.exists(path) or path.read_bytes() != text:
            write_atomic(path, self.script)
        return path

    def job_environment(self, job_id: str | None = None) -> dict[str, str]:
        """The job's environment: this process's, without the variables of an enclosing job, the secrets and the id."""
        from hpc_launch.schedulers.slurm.run_command import submission_environment

        variables = submission_environment(self.environment)
        kept = {name: value for name, value in variables.items() if name not in (JOB_ID, JOB_MARKER)}
        return kept | ({JOB_ID: job_id} if job_id is not None else {})


class JobRecord(Struct, frozen=True):
    """The state of a job by one source, as in final.json. Times are seconds since the epoch; None means unknown."""

    job_id: str
    state: str
    """Slurm's base state in upper case, without 'by 1000' or a trailing '+'."""
    source: str = "none"
    """`squeue`, `sacct`, `local`, `ssh` or, of another package, `scheduler`; of earlier releases also `scontrol`."""
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
    lost_start: float | None = None
    """When Slurm started a job whose start its controller lost in a restart, so that Slurm cancelled it; from sacct."""

    @property
    def ended_for_good(self) -> bool:
        """Whether Slurm reports the job as ended (a requeue may still follow)."""
        return self.state in ENDED_STATES


class PartlyUnreachable(Unreachable):
    """Some jobs could not be queried: `errors` says why, by id. `records` are the answers about the others."""

    def __init__(self, records: Mapping[str, JobRecord], errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(errors.values())))
        self.records, self.errors = records, errors


class Scheduler(Protocol):
    """Slurm, hosts reached by ssh, the local machine, or one of another package (docs/how-to/plugins.md).

    A scheduler has to submit a job, find it again, and tell its state and cancel it. The others are for what it can do
    besides; the answers given here are those of one that cannot, or does not know. Every method returns in bounded
    time.
    """

    takes: ClassVar[frozenset[str]] = frozenset()
    """The options of an attempt that it follows: `begin` (`--begin=now+SECONDS`), `dependency`
    (`--dependency=afterany:ID`), `exclude` (`--exclude=NODES`). Without `begin`, a driver waits before it submits."""

    @abstractmethod
    def submit(self, submission: Submission) -> str:
        """Submit the job and return its id. Raises SubmitRefused (NotWritten for a file error) or SubmitUnknown."""

    @abstractmethod
    def find(self, job_name: str) -> list[JobRecord]:
        """All jobs of this user with exactly this name, active or ended. Raises Unreachable if that is unknown."""

    @abstractmethod
    def query(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        """The records of these jobs; unknown ids are omitted. Raises Unreachable, or PartlyUnreachable if
        only some of the jobs can be queried.

        One query for all of them. An answer may be some seconds old, unless it has to be `fresh`: for a user's own
        command after a change.
        """

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """Cancel a job. Cancelling an ended job is not an error. Raises Unreachable."""

    def limits(self, account: str | None, partition: str | None, qos: str | None) -> QueueLimits | None:  # noqa: ARG002
        """The limits of a job of this user with these options; None if it has none. Raises Unreachable."""
        return None

    def test_only(self, submission: Submission) -> str:  # noqa: ARG002
        """The scheduler's estimate of when and where the job would start. Raises SubmitRefused, Unreachable."""
        raise Unreachable("this scheduler does not say when a job would start")

    def warn(self, job_id: str, *, preempt: bool = False) -> None:  # noqa: ARG002
        """Send the signal that precedes the time limit or, with `preempt`, a preemption. Raises Unreachable."""
        raise Unreachable(f"cannot warn {job_id}", "this scheduler sends no such signal on request")

    def must_wait(self, script: str, run_folder: Path) -> str | None:  # noqa: ARG002
        """Why the job could not start now and has no queue to wait in, as text; None where it can or has."""
        return None

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """Let a pending job use none of these nodes. Raises Unreachable where that cannot be changed."""
        del job_id, nodes

    def preempted(self, job_id: str) -> bool:  # noqa: ARG002
        """Whether the scheduler is preempting the job; False if unknown."""
        return False

    def cluster(self) -> str | None:
        """The name of the cluster; None if unknown."""
        return None

    def nodes(self, names: Sequence[str]) -> dict[str, str]:  # noqa: ARG002
        """Those of these names that are nodes, each with its state if it is out of service, or ''; none if unknown."""
        return {}

    def pending_reasons(self, partition: str | None) -> dict[str, int]:  # noqa: ARG002
        """How many jobs of all users wait in a partition, by reason; empty if unknown."""
        return {}

    def array_room(self, account: str | None, partition: str | None, qos: str | None) -> ArrayRoom | None:  # noqa: ARG002
        """What bounds job arrays with these options now; None without job arrays. Raises Unreachable."""
        return None

    def reservations(self, partition: str | None) -> Reservations | None:  # noqa: ARG002
        """Reservations of nodes, and the nodes of a partition; None if it has no such thing. Raises Unreachable."""
        return None

    def size(self, partition: str | None) -> int | None:  # noqa: ARG002
        """Number of nodes in a partition (None: the default partition); None if unknown."""
        return None


class SchedulerDescriptor(Descriptor, frozen=True, kw_only=True):
    """One scheduler of another package."""

    group: ClassVar[str] = "schedulers"
    open: Callable[[], Scheduler]
    """Makes it; imports what it needs only then."""


class _Guarded:
    """A scheduler of another package: whatever it raises becomes an error that its callers expect."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self._name, self._scheduler, self.takes = name, scheduler, scheduler.takes

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            try:
                answer = getattr(self._scheduler, method)(*args, **options)
                if not isinstance(answer, {"submit": str, "query": dict, "find": list}.get(method, object)):
                    raise TypeError(f"it returned {answer!r}")
                return answer
            except UserError:
                raise
            except Exception as error:
                text = f"`{method}` of {packages_of('schedulers', self._name)} failed: {type(error).__name__}: {error}"
                raise SubmitUnknown(text) if method == "submit" else Unreachable(text) from error

        return call


class _OnCluster:
    """Slurm, with each command for one cluster of several behind the same login."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self._name, self._scheduler, self.takes = name, scheduler, scheduler.takes

    def __getattr__(self, method: str) -> Any:
        from hpc_launch.schedulers.slurm.run_command import on_cluster

        return on_cluster(self._name)(getattr(self._scheduler, method))


def scheduler_for(kind: str, cluster: str | None = None) -> Scheduler:
    """The scheduler of a site profile by its name, or `allocation` for `hpc-launch run`.

    `cluster`: the one that Slurm's commands are for, where a login reaches several.

    Raises Refused for one of another package that is not there or does not work.
    """
    if kind == "slurm":
        from hpc_launch.schedulers.slurm.slurm_scheduler import SlurmScheduler

        slurm = SlurmScheduler()
        return slurm if cluster is None else cast("Scheduler", _OnCluster(cluster, slurm))
    if kind in {"local", "allocation"}:
        from hpc_launch.schedulers.local.local_scheduler import LocalScheduler

        return LocalScheduler(in_allocation=kind == "allocation")
    if kind == "ssh":
        from hpc_launch.schedulers.ssh.ssh_scheduler import SshScheduler

        return SshScheduler()
    with guarded("schedulers", kind):
        made = load("schedulers", kind, SchedulerDescriptor).open()
    return cast("Scheduler", _Guarded(kind, made))
