"""The results of recovery: evidence → Diagnosis → Verdict, each frozen.

Candidates are possible root causes: here are those that the scheduler reports.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.diagnose.evidence import Evidence
from hpc_launch.job.retry import FAILURE_CLASSES as FAILURE_CLASSES  # noqa: PLC0414 - exported

Action = Literal["RETRY", "RETRY_ELSEWHERE", "RETRY_CHANGED", "CONTINUE", "STOP", "NONE"]
Confidence = Literal["high", "medium", "low"]
Level = Literal["scheduler", "infrastructure", "workload", "unknown"]
"""Who can do something about a failure: the scheduler's limits, the site's hardware and network, or the job itself."""

NEVER_SUBMITTED = "never_submitted"
"""The cause of an attempt whose driver was killed before it submitted the job."""
TOO_FEW = "too_few_nodes_left"
"""The cause of an attempt for which the nodes that hpc-launch excluded leave too few nodes."""
NODE_CHECK = "node_check"
"""The cause of an attempt that ended because nodes failed the check before the training."""
NODE_UNFIT = "node_unfit"
"""The same where the check shows no fault of the node itself: other users of it may have caused what it found."""
NODE_LOST = "node_lost"
"""The cause of an attempt that ended because a node fell silent."""


class Quote(Struct, frozen=True):
    """One line of evidence. `line` counts from 1; 0 where the source has no lines, such as a row of `sacct`."""

    file: str
    line: int
    text: str


class FirstFailure(Struct, frozen=True):
    """Who failed first. `time` is seconds since the epoch; each is None where no evidence names it."""

    node: str | None = None
    rank: int | None = None
    time: float | None = None
    role: str | None = None
    """The role, in a job with several programs."""
    exit_code: int | None = None
    """That of the role."""

    @property
    def place(self) -> str:
        """`role server rank 0 on n1 with exit code 3`, as far as known."""
        known = {"role": self.role, "rank": self.rank, "on": self.node, "with exit code": self.exit_code}
        return " ".join(f"{word} {value}" for word, value in known.items() if value is not None)


class Diagnosis(Struct, frozen=True):
    """What ended an attempt: the class of the root cause, never of what followed from it."""

    failure_class: str
    """One of FAILURE_CLASSES."""
    level: Level = "unknown"
    cause: str | None = None
    """The finer name: an id of the rules."""
    confidence: Confidence = "low"
    first_failure: FirstFailure = FirstFailure()
    evidence: tuple[Quote, ...] = ()
    also: tuple[str, ...] = ()
    """What else was seen, in words."""
    default_verdict: Action = "STOP"
    """The default of the class or of the rule, before history and policy apply."""
    bad_nodes: tuple[str, ...] = ()
    """Nodes that the evidence blames, by their names in Slurm; never a bystander."""
    proven_nodes: tuple[str, ...] = ()
    """Those of `bad_nodes` that the scheduler or the watcher reports. Only these enter node health: the output of a
    training is no evidence against a node of other people's jobs."""
    place_known: bool = False
    """Whether the evidence points to a place (a node, or the address of a peer) that another attempt can avoid."""
    advice: str = ""
    """The next step, in one sentence."""
    start: str | None = None
    """Of an attempt that ended before its first step: the phase of its start, and the nodes that were missing."""


class Verdict(Struct, frozen=True):
    """What happens next, and why."""

    action: Action
    reason: str
    exclude: tuple[str, ...] = ()
    """Nodes that the next attempt must not use."""
    sets: tuple[str, ...] = ()
    """What the next attempt changes, as `--set` spells it."""
    delay_s: float = 0.0
    readmit: tuple[str, ...] = ()
    """Nodes that the next attempt may use again."""
    steps_used: int = 0
    """How many steps of the class's list of changes are used up."""


CONSEQUENCE = 50
"""From this order on, words report what the end of another process did to this one."""
SYMPTOM = 60
"""From this order on, a line shows that something ended, not why. It is not listed beside a cause."""


class Candidate(Struct, frozen=True):
    """A possible root cause."""

    failure_class: str
    cause: str
    order: int
    """As in the rules: 10 is nearest to the root, 60 and above only shows that something ended."""
    quotes: tuple[Quote, ...] = ()
    node: str | None = None
    rank: int | None = None
    time: float | None = None
    blames: str | None = None
    peer: str | None = None
    verdict: Action | None = None
    at_start: Action | None = None
    advice: str = ""
    source: int = 1 << 30
    line: int = 1 << 30
    rule: str = ""
    certain: bool = False
    """Reported by the scheduler or the watcher, not only read in a log."""
    confidence: Confidence | None = None
    """Where it does not follow from the order."""
    timed: bool = True
    """Whether the failure happened at `time`; else `time` only orders the candidates."""
    by_slurm: bool = False
    """Slurm itself wrote the line: no output of the training."""
    code: int | None = None
    """It only reports how a process ended: as in meanings.py."""

    @property
    def band(self) -> int:
        """Time decides among candidates of one band."""
        return self.order // 10

    @property
    def proven(self) -> bool:
        """Whether the evidence is that of the scheduler or the watcher, which the training cannot write."""
        return self.certain or self.by_slurm


NODE_STATES = {"NODE_FAIL": "node_failure", "BOOT_FAIL": "boot_failure", "LAUNCH_FAILED": "boot_failure"}


_WHO_KILLS = "retry; somebody or something killed the job's script (`scancel --signal=KILL --batch` does this)"
_WHO_CANCELS = "retry; Slurm ended the job after a restart of its controller, which had not saved that the job runs"


def from_scheduler(evidence: Evidence) -> list[Candidate]:
    """Candidates from Slurm: the job's state, and the states of its steps, where an out-of-memory kill hides."""
    facts = evidence.scheduler
    if facts is None:
        return []
    found: list[Candidate] = []

    def add(failure_class: str, cause: str, order: int, text: str) -> None:
        quotes = (Quote(facts.source, 0, text),)
        found.append(Candidate(failure_class, cause, order, quotes, time=facts.ended, certain=True))

    state = facts.state.split()[0].upper() if facts.state else ""
    words = f"state {facts.state}" + (f", reason {facts.reason}" if facts.reason else "")
    if state in NODE_STATES:
        add("node_failure", NODE_STATES[state], 10, words)
    elif state == "PREEMPTED":
        add("preempted", "preempted", 12, words)
    elif state == "REQUEUED":
        add("preempted", "requeued_by_scheduler", 35, words)
    elif state == "TIMEOUT":
        add("time_limit", "time_limit", 12, words)
    elif state == "DEADLINE":
        add("time_limit", "deadline", 12, words)
    elif state == "OUT_OF_MEMORY":
        add("host_oom", "host_oom_kill", 10, words)
    elif state.startswith("CANCELLED") and facts.lost_start is not None:
        add("node_failure", "controller_restart", 12, f"{words}: its first step is older than its start")
        found[-1] = replace(found[-1], verdict="RETRY", advice=_WHO_CANCELS)
    elif state.startswith("CANCELLED"):
        add("cancelled_by_user", "cancelled", 12, words)
    for step, step_state, code in facts.steps:
        if step_state.upper().startswith("OUT_OF_ME") or code == "0:125":
            add("host_oom", "host_oom_kill", 10, f"step {step}: {step_state} {code}")
            break
    # Slurm gives the reason JobLaunchFailure to any batch shell that a signal ended (job_complete, job_mgr.c).
    unlaunched = facts.reason == "JobLaunchFailure" and state == "FAILED" and not facts.signal
    if evidence.end is None and state == "FAILED" and facts.signal not in {None, 0, 53}:
        # A script that sees the training end writes the record of its end, and Slurm says who cancels a job.
        when = "" if evidence.began else " before it began"
        add("segfault_or_abort", "script_killed", 14, f"{words}: signal {facts.signal} ended its script{when}")
        found[-1] = replace(found[-1], verdict="RETRY", advice=_WHO_KILLS)
    elif not evidence.began and (facts.signal == 53 or unlaunched):
        add("config_error", "output_path_unwritable", 25, f"{words}, exit code 0:{facts.signal or 53}")
    if facts.exit_code == 93:
        add("user_code_error", "requested_no_restart", 10, f"{words}, exit code 93")
    return found
