"""The evidence for a diagnosis: what the scheduler, the job's own records and its logs report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from hpc_launch.schedulers.scheduler import JobRecord


class Hit(Struct, frozen=True):
    """One line that matches a rule. Times are seconds since the epoch."""

    rule: str
    """The id of the rule."""
    file: str
    line: int
    text: str
    node: str | None = None
    rank: int | None = None
    time: float | None = None
    """Of this line, or of the last line before it that bears one."""
    frame: str = ""
    """Where the program was: the last `File "…", line N` of a traceback before this line."""
    frame_line: int = 0
    owner: str = ""
    """The failure class that the type of the exception and its frames show."""
    faint: bool = False
    """The line itself is a warning, or reports that the program continued."""
    source: int = 0
    """The number of the log; it breaks ties in time."""
    timed: bool = True
    """Whether `time` is that of this line; else it is that of the last line before it that has one."""
    blames: str | None = None
    """The node at fault, where the pattern of the rule captures one."""
    node_index: int | None = None
    """The number of the node at fault in the job, where the line gives that instead of its name."""
    peer: str | None = None
    """The address at the other end of a connection."""
    local_rank: int | None = None
    """Where a launcher gives that instead of the rank."""
    later_progress: int = 0
    """How many steps of the training were seen after this line in the same log."""
    earlier: bool = False
    """The line belongs to an earlier job or to a run of the program before its last restart."""
    later_success: bool = False
    """Whether the log reports success after this line."""
    code: int | None = None
    """How a process ended, where the line reports that: -N for signal N, else its exit code (meanings.py)."""


class WorkerFailure(Struct, frozen=True):
    """One entry of torchrun's list of failed workers, or one error file of a worker."""

    file: str
    line: int
    rank: int | None = None
    node: str | None = None
    time: float | None = None
    exit_code: int | None = None
    message: str = ""
    """The exception's message; empty where torchrun had none."""
    exit_line: int = 0
    """The line with its exit code."""
    said_root: bool = False
    """torchrun calls it the root cause. Often right, not always."""
    source: int = 0


class LogScan(Struct, frozen=True):
    """What a scan found in one log."""

    name: str
    source: int = 0
    node: str | None = None
    rank: int | None = None
    lines: int = 0
    hits: tuple[Hit, ...] = ()
    workers: tuple[WorkerFailure, ...] = ()
    steps_seen: int = 0
    last_step: int | None = None
    last_total: int | None = None
    last_progress_line: int = 0
    complete: bool = False
    """Whether every counter of steps reached its total."""
    report_line: int = 0
    """The last line that reports a result for the first time, where only few lines follow; 0: none."""
    episode_line: int = 0
    """Where the last episode begins: lines before it belong to an earlier job or start; 0: at the first line."""
    success_line: int = 0
    """The last line that reports success; 0: none."""
    success_text: str = ""
    last_line: str = ""
    nan_run: int = 0
    """How many of the last losses in a row were NaN or infinite."""
    nan_line: int = 0
    nan_text: str = ""
    idle_s: float = 0.0
    """For how long the log had only repeated lines after the last training step."""
    idle_line: int = 0
    idle_text: str = ""
    bad_line: int = 0
    """The last line that mentions a failure, whether a rule matches it or not; 0: none."""
    bad_text: str = ""


class EndFacts(Struct, frozen=True):
    """The record that the job's script wrote at its end."""

    exit_code: int
    signal: str | None = None
    phase: str | None = None
    warned: bool = False
    preempted: bool = False
    """The warning announced a preemption, not the time limit."""
    lost_nodes: int = 0
    ended: float | None = None


class RoleFault(Struct, frozen=True, kw_only=True):
    """The role of the job that failed first, as what watches all of them saw it (roles.json)."""

    name: str
    role: str
    node: str
    exit_code: int
    why: str
    ended: bool = False
    """Whether it ended by itself; else it was ended, as it was not ready in time."""
    time: float | None = None
    """When it was noticed."""


class NodeExit(Struct, frozen=True):
    """The exit code of the launcher on one node, or of one process."""

    node: str
    code: int
    file: str = ""
    time: float | None = None
    rank: int | None = None


class AgentNote(Struct, frozen=True):
    """What the watcher inside the job recorded on one node.

    `kind`: `hang` (no progress for too long), `oom_kill` (the kernel killed for memory), `death` (a process ended by a
    signal or a code), `left` (it ended with 0), `spared` (it ended, nobody saw how, and the kernel killed nothing for
    memory), `gpu` (the driver reports a fault).
    """

    kind: str
    file: str
    text: str
    node: str | None = None
    rank: int | None = None
    time: float | None = None
    signal: int | None = None
    code: int | None = None
    ranks: tuple[int, ...] = ()
    oom_kill: bool | None = None
    """Whether the kernel killed the rank for memory; None where nothing tells."""
    raised: float | None = None
    """When an exception that nobody caught ended the main program of the rank, before its end."""
    noticed: float | None = None
    """When a hang, which began at `time`, was noticed, and the ranks ended for it."""


HEARTBEAT = "heartbeat"
"""`NodeFault.check` of a node that was lost."""


OWN_FAULTS = ("gpu state", "gpu links", "clock", "infiniband", HEARTBEAT)
"""How the names of checks begin that show a fault of the node itself. What the others find may be the fault of another
user of the node (a full /tmp, a process on a GPU), of the profile or the job (the GPUs and interfaces they name),
of a partition with two kinds of nodes (their memory) or of the software."""


class NodeFault(Struct, frozen=True):
    """A node that failed the check before the training started, or that was lost while it ran (`heartbeat`)."""

    node: str
    check: str
    text: str
    file: str = "node-check.json"


class NeverStarts(Struct, frozen=True):
    """A pending job that can never start."""

    failure_class: str
    job: JobRecord
    meaning: str = ""
    """Its reason in words."""


class DriverFacts(Struct, frozen=True):
    """What a driver found out beyond the attempt's files; the defaults mean that it did not ask."""

    ending: JobRecord | None = None
    """The job as the scheduler shows it now: set inside one that was ended by a signal."""
    preempted: bool = False
    """Whether the scheduler is ending the job to make room for another."""
    never_starts: NeverStarts | None = None
    """Set once the job waited for `retry.stuck_after`."""
    forgotten: str | None = None
    """Set where the job's own cluster does not know a job that began and left no end record, and whose attempt folder
    was silent for `retry.lost_after`: the state in words."""
    silent_s: float = 0.0
    """For how long nothing was written in the attempt's folder, of a forgotten job."""
    went_further: bool | None = None
    """Of a training that was warned and ended with 0: whether it is not known to be done, and got further."""
    excluded: tuple[str, ...] = ()
    """Nodes that hpc-launch excluded from this attempt, the newest last; empty where a person submitted it."""
    node_states: tuple[tuple[str, str], ...] = ()
    """(node, state) of the job's nodes that are out of service now."""


class Evidence(Struct, frozen=True):
    """All evidence about one attempt, or about the log files of any job."""

    logs: tuple[LogScan, ...] = ()
    scheduler: JobRecord | None = None
    end: EndFacts | None = None
    began: bool = False
    """Whether the job's script left the record of its start."""
    node_exits: tuple[NodeExit, ...] = ()
    notes: tuple[AgentNote, ...] = ()
    node_faults: tuple[NodeFault, ...] = ()
    """Of an attempt that ended in the node check or by the loss of a node."""
    nodes: tuple[str, ...] = ()
    """The job's nodes by their names in Slurm, in the order of their numbers in the job; empty where not known."""
    cancelled_by: str | None = None
    """The user who cancelled the attempt with hpc-launch."""
    cancelled_at: float | None = None
    void: str | None = None
    """Why the attempt never had a job: `never submitted`, `cancelled …`, or the scheduler's refusal."""
    role: RoleFault | None = None
    driver: DriverFacts = DriverFacts()
    alive: bool = False
    """The job still runs, so silence is not a failure."""
    unfinished: str | None = None
    """Why a training that ended with exit code 0 is not finished, as text."""
    start: str | None = None
    """How far the start was of an attempt that ended before its first step, and which nodes were missing, as text."""
    of_a_run: bool = False
    """Collected from a run folder, not from log files alone."""
