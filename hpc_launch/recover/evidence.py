"""All that a diagnosis is made from, as values: what the scheduler, the job's own records and its logs say."""

from __future__ import annotations

from msgspec import Struct


class Hit(Struct, frozen=True):
    """One line that a rule knows. Times are seconds since the epoch."""

    rule: str
    """The id of the rule."""
    file: str
    line: int
    text: str
    node: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    time: float | None = None
    frame: str = ""
    """Where the program was: the last `File "…", line N` of a traceback before this line."""
    frame_line: int = 0
    faint: bool = False
    """The line itself says that it is a warning, or that the work went on."""
    source: int = 0
    """The number of the log: ties in time are broken by it."""
    blames: str | None = None
    """The node that the rule says is at fault, where its pattern names one."""
    peer: str | None = None
    """The address at the other end of a connection."""
    later_progress: int = 0
    """How many steps of the training were seen after this line in the same log."""
    later_success: bool = False
    """Whether the log says after this line that the work was done."""


class WorkerFailure(Struct, frozen=True):
    """One entry of torchrun's list of failed workers, or one error file of a worker."""

    file: str
    line: int
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    time: float | None = None
    exit_code: int | None = None
    message: str = ""
    """The exception's own words; empty where torchrun knew none."""
    exit_line: int = 0
    """Where its exit code stands."""
    said_root: bool = False
    """torchrun calls it the root cause. Often right, not always."""
    source: int = 0


class LogScan(Struct, frozen=True):
    """What one log holds."""

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
    success_line: int = 0
    """The last line that says that the work was done; 0: none."""
    success_text: str = ""
    last_line: str = ""
    nan_run: int = 0
    """How many of the last losses in a row were NaN or infinite."""
    nan_line: int = 0
    nan_text: str = ""
    idle_s: float = 0.0
    """How long the log went on after the last step of the training with nothing but repeated lines."""
    idle_line: int = 0
    idle_text: str = ""
    bad_line: int = 0
    """The last line with a word of failure in it that no rule need know; 0: none."""
    bad_text: str = ""


class SchedulerFacts(Struct, frozen=True):
    """The scheduler's word on the job: Slurm's own words and numbers."""

    state: str
    source: str = "none"
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    derived_exit_code: int | None = None
    steps: tuple[tuple[str, str, str], ...] = ()
    """(step, state, exit code as printed)."""
    ended: float | None = None
    failed_node: str | None = None


class EndFacts(Struct, frozen=True):
    """The record that the job's script wrote at its end."""

    exit_code: int
    signal: str | None = None
    phase: str | None = None
    warned: bool = False
    preempted: bool = False
    """The warning was a preemption's, not that of the time limit."""
    lost_nodes: int = 0
    ended: float | None = None


class NodeExit(Struct, frozen=True):
    """With which code the launcher of a node ended."""

    node: str
    code: int
    file: str = ""
    time: float | None = None


class AgentNote(Struct, frozen=True):
    """What the watcher inside the job noted on one node.

    `kind`: `hang` (no progress for too long), `oom_kill` (the kernel killed for memory), `death` (a process ended by a
    signal or a code), `spared` (it ended, nobody saw how, and the kernel killed nothing for memory), `gpu` (the driver
    reports a fault), `disk_full`.
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


class EndingJob(Struct, frozen=True):
    """A job that is ending after a signal, as the scheduler shows it now."""

    job_id: str
    state: str
    source: str
    reason: str | None = None


class NeverStarts(Struct, frozen=True):
    """A pending job that can never start."""

    failure_class: str
    state: str
    source: str
    reason: str
    meaning: str = ""
    """The reason in words."""


class DriverFacts(Struct, frozen=True):
    """What a driver found out beyond the attempt's files; the defaults mean that it did not ask."""

    ending: EndingJob | None = None
    """Set inside a job that was ended by a signal."""
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
    """Everything known of one attempt, or of a few log files of anybody's job."""

    logs: tuple[LogScan, ...] = ()
    scheduler: SchedulerFacts | None = None
    end: EndFacts | None = None
    node_exits: tuple[NodeExit, ...] = ()
    notes: tuple[AgentNote, ...] = ()
    nodes: tuple[str, ...] = ()
    """The job's nodes by Slurm's names, in order of their number in the job; empty where not known."""
    cancelled_by: str | None = None
    """Who cancelled the attempt by hpc-launch."""
    cancelled_at: float | None = None
    void: str | None = None
    """Why the attempt never had a job: `never submitted`, `cancelled …`, or the scheduler's refusal."""
    driver: DriverFacts = DriverFacts()
    alive: bool = False
    """The job still runs: silence is no failure then."""
    unfinished: str | None = None
    """Why a training that ended with exit code 0 is not done, in words."""
    of_a_run: bool = False
    """Made from a run's folder, not from log files alone."""
