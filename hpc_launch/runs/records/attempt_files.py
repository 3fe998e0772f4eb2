"""The records of an attempt as one value, read together; its job's final state (final.json, stuck.json); and what each
role of the job does (roles.json, written by agent/roles.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.agent.checkpoints import entries as entries_of
from hpc_launch.agent.checkpoints import size_of
from hpc_launch.base.files import read_text
from hpc_launch.base.json_records import create_record, read_record, write_record
from hpc_launch.diagnose.evidence import RoleFault
from hpc_launch.job.hostlist import names_or_text
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.plan_record import plan_of
from hpc_launch.runs.records.submission import (
    CancelRequest,
    Claim,
    Intent,
    ScriptRecord,
    SubmittedJob,
    SuccessorRecord,
    array_folder,
    read_claim,
)
from hpc_launch.runs.records.verdict_record import VerdictRecord
from hpc_launch.schedulers.scheduler import ENDED_STATES, JobRecord

SETTLED_S = 60.0
"""How long after its end a COMPLETED job may still lack the steps' exit codes, which accounting learns late."""

REQUEUE_S = 60.0
"""How long after its end a job that lost its nodes may still turn out to be requeued."""

MAY_COME_BACK = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})
"""After these Slurm may requeue the job."""


class StuckJob(Struct, frozen=True, kw_only=True):
    """stuck.json: when a driver first saw that the pending job can never start."""

    time: float | None = None
    reason: str | None = None


class PostponedAttempt(Struct, frozen=True, kw_only=True):
    """refused.json of an attempt: the scheduler does not take the next one at present. Seconds since the epoch."""

    since: float
    tried: float
    reason: str

    @property
    def words(self) -> str:
        """Why it waits, for how long drivers try it again, and how often."""
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since + POSTPONED_S))
        reason = f"the next attempt waits: {' '.join(self.reason.split())}"
        return f"{reason}; it is tried again every {RETRY_S / 60:.0f} minutes until {until}"


RETRY_S = 300.0
"""How long drivers wait after a refusal that passes by itself."""
POSTPONED_S = 3 * 86400.0
"""For how long they try again."""


def stuck_since(attempt: AttemptFolder, job: JobRecord) -> float:
    """Since when the pending job cannot start. Kept in a file, so that it does not depend on any one driver."""
    with suppress(OSError):
        create_record(attempt.stuck, StuckJob(time=job.as_of, reason=job.reason))
    first = read_record(attempt.stuck, StuckJob)
    return job.as_of if first is None or first.time is None else first.time


def settled(record: JobRecord) -> bool:
    """Whether this state is final: ended, with an end time, and late enough to be complete."""
    if not record.ended_for_good or record.ended is None:
        return False
    wait = 0.0
    if (
        record.state == "COMPLETED"
        and record.derived_exit_code is None
        and record.source not in ("local", "ssh", "scheduler")
    ):
        wait = SETTLED_S
    if record.state in MAY_COME_BACK:
        wait = REQUEUE_S
    return record.as_of - record.ended >= wait


def keep_final(attempt: AttemptFolder, record: JobRecord) -> None:
    """Write final.json where the state is final.

    In a run of another user, after a failed write, and where a crash of the machine tore the file, the scheduler is
    asked again later: hundreds of points that ended together do not wait for the disk.
    """
    if settled(record):
        with suppress(OSError):
            write_record(attempt.final, record, sync=False)


def of_attempt(record: JobRecord, first_step: int | None) -> JobRecord:
    """The record without the steps of the attempts that ran in the job before: those below `first_step`."""
    if not first_step:
        return record
    steps = tuple(step for step in record.steps if not step[0].isdecimal() or int(step[0]) >= first_step)
    codes = [code for step, state, code in steps if step.isdecimal() and state in ENDED_STATES]
    derived = (record.derived_exit_code if any(code != "0:0" for code in codes) else 0) if codes else None
    return replace(record, steps=steps, derived_exit_code=derived)


class RoleState(Struct, frozen=True, kw_only=True):
    """A role, or one replica of it. Times are seconds since the epoch."""

    name: str
    role: str
    state: str
    """`waiting` for other roles, `starting` until it is ready, `ready`, `ended`."""
    since: float
    started: float | None = None
    """When it first started."""
    first_ready: float | None = None
    outages: tuple[tuple[float, float | None], ...] = ()
    """Of each restart: when it had ended, and when it was ready again."""
    nodes: tuple[str, ...] = ()
    host: str = ""
    port: int = 0
    url: str = ""
    ports: dict[str, int] = {}
    ready_since: float | None = None
    restarts: int = 0
    exit_code: int | None = None
    ends_job: bool = False
    waits_for: str | None = None
    """While it starts: the last answer to the question whether it is ready."""


class RoleStates(Struct, frozen=True, kw_only=True):
    """All roles of an attempt."""

    roles: tuple[RoleState, ...] = ()
    """The one whose progress is the job's comes first."""
    failed: RoleFault | None = None

    @property
    def late(self) -> tuple[RoleState, ...]:
        """Those that have not been ready yet."""
        return tuple(role for role in self.roles if role.first_ready is None and role.state != "ended")

    @property
    def ready_at(self) -> float | None:
        """When the last of them was ready for the first time; None while one is not."""
        times = (role.since if role.first_ready is None else role.first_ready for role in self.roles)
        return None if self.late else max(times, default=None)

    def as_json(self) -> list[dict[str, Any]]:
        """The list of `status --json`."""
        shown = (
            *("name", "state", "since", "started", "first_ready", "ready_since", "restarts", "exit_code", "ends_job"),
            *("waits_for", "nodes", "host", "port", "url", "ports"),
        )
        first = self.failed.name if self.failed is not None else None
        return [{key: getattr(role, key) for key in shown} | {"failed": role.name == first} for role in self.roles]


R = TypeVar("R", bound=Struct)


@dataclass(frozen=True)
class AttemptFiles:
    """The records of one attempt; None where a file is missing or torn."""

    attempt: AttemptFolder
    intent: Intent | None = None
    job: SubmittedJob | None = None
    claim: Claim | None = None
    start: ScriptRecord | None = None
    end: ScriptRecord | None = None
    """As read; `own_end` is the one to decide by."""
    final: JobRecord | None = None
    cancel: CancelRequest | None = None
    verdict: VerdictRecord | None = None
    successor: SuccessorRecord | None = None
    postponed: PostponedAttempt | None = None
    roles: RoleStates | None = None
    """None for a job of one program, or before its roles begin."""
    output: bool = False
    """Whether the training has written anything yet."""

    @property
    def job_id(self) -> str | None:
        """The job of this attempt: the one that claimed it, else the one that was submitted for it."""
        if self.claim is not None and self.claim.job_id is not None:
            return self.claim.job_id
        return self.job.job_id if self.job is not None else None

    @property
    def void(self) -> str | None:
        """Why no job will ever run for this attempt; None where one may."""
        return self.claim.void if self.claim else None

    @property
    def restart(self) -> int:
        """How often Slurm had requeued the job when this attempt began."""
        counts = [record.restart for record in (self.start, self.job) if record is not None]
        return next((count for count in counts if count is not None), 0)

    @property
    def first_step(self) -> int | None:
        """The number of the job's first step of this attempt; None where it began with the job."""
        return next((one.first_step for one in (self.start, self.end) if one is not None), None)

    def same_start(self, other: AttemptFiles) -> bool:
        """Whether both attempts ran in the same job, between two requeues."""
        return self.job_id is not None and (self.job_id, self.restart) == (other.job_id, other.restart)

    @property
    def own_end(self) -> ScriptRecord | None:
        """The end record, where it belongs to this job and this restart and has an exit code."""
        end = self.end
        if end is None or end.exit_code is None or end.job_id is None or end.job_id != self.job_id:
            return None
        return end if end.restart in (None, self.restart) else None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes by number, by the script's own records."""
        records = [record.node_names for record in (self.end, self.start) if record is not None]
        return next((names for names in records if names), ())

    @property
    def _first(self) -> str:
        """The node that runs the script, or is to run it in a job that goes on; '' where not known."""
        if self.nodes:
            return self.nodes[0]
        try:
            return read_text(self.attempt.hosts, errors="replace").partition("\n")[0]
        except OSError:
            return ""

    def concerns(self, record: JobRecord) -> JobRecord:
        """What the scheduler's record of the job says of this attempt: without the steps of earlier ones.

        A job that lost its first node failed by that, however it was ended then.
        """
        own = of_attempt(record, self.first_step)
        if own.state == "COMPLETED" and self.roles is not None:
            own = replace(own, derived_exit_code=0, steps=())  # a server was restarted, or ended once the job was done
        if own.state not in ENDED_STATES or own.state == "COMPLETED" or not self.lost_first(own):
            return own
        return replace(own, state="NODE_FAIL", reason=None)

    def lost_first(self, record: JobRecord) -> bool:
        """Whether Slurm took the node that ran the script out of the job, which goes on without it (`--no-kill`)."""
        names = names_or_text(record.nodes)
        if not names or record.restarts not in (None, self.restart) or not self._first or self._first in names:
            return False
        plan = plan_of(self.attempt)
        return plan is not None and plan.chooses_nodes


def successor_of(attempts: Sequence[AttemptFiles]) -> tuple[AttemptFiles, SuccessorRecord] | None:
    """The successor of the run's newest job, with the attempt that it was submitted with; None if it has none."""
    job_id = next((files.job_id for files in reversed(attempts) if files.job_id is not None), None)
    newest = next(((one, one.successor) for one in reversed(attempts) if one.successor is not None), None)
    return newest if newest is not None and newest[1].after == job_id else None


class Reader:
    """Reads attempts repeatedly, and only files that changed."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[int, int, int], Any]] = {}
        self._with_output: set[Path] = set()
        self._arrays: dict[Path, SubmittedJob] = {}

    def read(self, attempt: AttemptFolder) -> AttemptFiles:
        """The current records. Never raises: an unreadable folder counts as empty."""
        # Listing the folder makes an NFS client ask the server again. A lookup by name may keep saying for a minute
        # that a file is missing.
        entries = {entry.name: entry for entry in entries_of(attempt.path)}

        def record(path: Path, kind: type[R]) -> R | None:
            return self._changed(entries.get(path.name), lambda: read_record(path, kind))

        intent = record(attempt.intent, Intent)
        return AttemptFiles(
            attempt=attempt,
            intent=intent,
            job=record(attempt.job, SubmittedJob) or self._of_array(attempt, intent),
            claim=self._changed(entries.get(attempt.claim.name), lambda: read_claim(attempt)),
            start=record(attempt.start, ScriptRecord),
            end=record(attempt.end, ScriptRecord),
            final=record(attempt.final, JobRecord),
            cancel=record(attempt.cancel, CancelRequest),
            verdict=record(attempt.verdict, VerdictRecord),
            successor=record(attempt.successor, SuccessorRecord),
            postponed=record(attempt.refused, PostponedAttempt),
            roles=record(attempt.roles, RoleStates),
            output="logs" in entries and self._output(attempt),
        )

    def _of_array(self, attempt: AttemptFolder, intent: Intent | None) -> SubmittedJob | None:
        """The job of a point that a task of an array is to run: the array's own record names the array."""
        array = array_folder(attempt, intent) if intent is not None else None
        if array is None or intent is None:
            return None
        job = self._arrays.get(array.path) or read_record(array.job, SubmittedJob)
        if job is None or job.job_id is None:
            return None
        self._arrays[array.path] = job  # it is written once
        return replace(job, job_id=intent.job_of(job.job_id))

    def _changed(self, entry: os.DirEntry[str] | None, read: Callable[[], R | None]) -> R | None:
        """The content of a file, read again if it changed."""
        if entry is None:
            return None
        try:
            status = entry.stat()
        except OSError:
            return None
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        kept = self._kept.get(entry.path)
        if kept is not None and kept[0] == stamp:
            content: R = kept[1]
            return content
        value = read()
        if value is not None:
            self._kept[entry.path] = (stamp, value)
        return value

    def _output(self, attempt: AttemptFolder) -> bool:
        if attempt.path not in self._with_output and any(size_of(path) for _, _, path in attempt.node_logs()):
            self._with_output.add(attempt.path)
        return attempt.path in self._with_output
