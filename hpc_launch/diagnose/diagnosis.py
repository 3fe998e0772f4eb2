"""The results of recovery: evidence → Diagnosis → Verdict, each frozen."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

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
