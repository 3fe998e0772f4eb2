"""A row of the fault matrix: what is planted, and what has to come of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.prove.administrator import order

if TYPE_CHECKING:
    from tests.prove.scene import Scene

Act = Callable[["Scene"], None]
CRASH = ("segfault_or_abort", "unknown")
PAIR = {"nodes": 2}
"""A cluster of two nodes for the row alone."""
ONE_NODE = {"nodes": 1, "processes_per_node": 2}
"""A job on one node."""
RANK_1: dict[str, Any] = {"rank": 1, "node": 1}
"""The second rank is to be named, on the second node."""


def nothing(scene: Scene) -> None:
    """The training itself does it, as the job's arguments say."""


def fine(scene: Scene) -> list[str]:
    """Nothing more is to be looked at."""
    return []


def fails(kind: str, *, rank: int = 0, step: int | None = None, **more: Any) -> dict[str, Any]:
    """Arguments of a training that fails by itself: how (training/faults.py), which rank (-1 is all), at which step."""
    return {"fault": kind, "fault-rank": rank, **({} if step is None else {"fault-step": step}), **more}


def command(*words: str, user: str | None = "root", on: str | None = None) -> Act:
    """Somebody runs a command on the login node, or `on` another one: JOB, NODE0 and NODE1 are those of the run."""

    def act(scene: Scene) -> None:
        node = None if on is None else scene.fill(on)
        scene.cluster.run([scene.fill(word) for word in words], user=user, node=node, check=True)

    return act


def ordered(what: str) -> Act:
    """An administrator does something to the job, or to its first node."""
    return lambda scene: order(scene.cluster, what, job=scene.fill("JOB"), node=scene.fill("NODE0"))


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        key: Its name, in file names and on the command line.
        fault: What is planted, in words.
        classes: The classes that are right for the first attempt that fails.
        verdicts: The verdicts that are right for it.
        attempts: How many the run has in the end.
        state: The run's state in the end.
        job: What differs from the usual job file.
        args: What differs in the training's arguments.
        before: Done before the submission.
        act: Done once the training has reached step `at`.
        after: Done when the run is over: says what is wrong, in words.
        at: The step at which `act` happens; 0 is once the job is submitted.
        node: Which node is struck, and is to be named as the first that failed: its name, or its place in the first
            attempt.
        rank: Which rank is to be named.
        loss: What the final loss is beside an undisturbed run's: the same bits, `near` (1e-3), or None for no loss.
        cluster: What kind of cluster: `shared`, or the options of one of its own.
        profile: Changes of the site profile's text.
        options: More options of `submit`.
        exit_code: What `submit` ends with.
        note: What a reader of the table should know.
        seconds: The longest that it may take.
        quick: Part of the sample in the usual tests.
    """

    key: str
    fault: str
    classes: tuple[str, ...]
    verdicts: tuple[str, ...] = ("RETRY",)
    attempts: int | tuple[int, ...] = 2
    state: str = "COMPLETED"
    job: dict[str, Any] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)
    before: Act = nothing
    act: Act = nothing
    after: Callable[[Scene], list[str]] = fine
    at: int = 4
    node: int | str | None = None
    rank: int | None = None
    loss: str | None = "same"
    cluster: dict[str, Any] | None = None
    profile: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()
    exit_code: int = 0
    note: str = ""
    seconds: float = 300
    quick: bool = False

    def fresh(self) -> Row:
        """Return a copy whose job a round may change."""
        return replace(self, job=copy.deepcopy(self.job), args=copy.deepcopy(self.args))


def unharmed(key: str, fault: str, note: str = "no failure", **more: Any) -> Row:
    """A row whose run completes with its first attempt."""
    return Row(key, fault, ("success",), ("NONE",), attempts=1, note=note, **more)


def ended(key: str, fault: str, classes: tuple[str, ...], **more: Any) -> Row:
    """A row whose run fails with its first attempt, and must not be repeated."""
    usual: dict[str, Any] = {"verdicts": ("STOP",), "attempts": 1, "state": "FAILED", "loss": None}
    return Row(key, fault, classes, **{**usual, **more})


@dataclass
class Outcome:
    """What came of a row, as it goes into the state file and the table."""

    key: str
    ok: bool = False
    faults: list[str] = field(default_factory=list)
    found: str = ""
    cause: str = ""
    node: str = ""
    rank: str = ""
    verdict: str = ""
    attempts: int = 0
    state: str = ""
    reason: str = ""
    resumed_s: float | None = None
    loss: float | None = None
    reference: float | None = None
    lost_steps: int | None = None
    doubled: bool = False
    took_s: float = 0.0
    folder: str = ""
