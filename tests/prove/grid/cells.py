"""The cells of the grid, generated from its dimensions, and the fixed split into the half that may be learnt from.

Rules and code may be changed for cells of the open half only; the other half measures them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

SIGNALS = ("KILL", "SEGV", "ABRT", "BUS", "ILL", "FPE", "TERM", "INT", "HUP", "QUIT", "XCPU")
EXITS = (1, 2, 3, 127, 137, 139, 143)
EXCEPTIONS = (
    "ValueError", "KeyError", "IndexError", "TypeError", "RuntimeError", "AssertionError", "AttributeError",
    "ZeroDivisionError", "RecursionError", "StopIteration", "NotImplementedError", "JSONDecodeError",
    "UnicodeDecodeError", "FileNotFoundError", "IsADirectoryError", "ModuleNotFoundError", "ImportError",
    "MemoryError", "KeyboardInterrupt", "SystemExit",
)  # fmt: skip
PEER_ERRORS = ("ECONNREFUSED", "ECONNRESET", "EPIPE", "EHOSTUNREACH", "ENETUNREACH", "ETIMEDOUT", "gaierror")
"""Of a socket to another rank."""
DOWNLOAD_ERRORS = ("refused", "unresolved", "timeout")
"""Of urllib, for a file from elsewhere."""
STORAGE_ERRORS = ("ENOSPC", "EDQUOT", "EIO", "ESTALE", "EROFS", "EACCES", "EMFILE", "ETIMEDOUT")
HANGS = ("stop", "spin", "sleep")

SEED = 25
"""Of the order in which cells are played."""

PLACES = ("imports", "rendezvous", "first step", "middle", "save", "end")
"""When: `end` is after the last step and its checkpoint."""
RANKS = ("first", "other", "all")
OUTSIDE = ("launcher", "watcher", "script")
"""Processes beside the ranks; signals reach them."""
LAUNCHERS = {
    "local": ("torchrun", "deepspeed", "none"),
    "slurm": ("torchrun", "srun"),
    "ssh": ("torchrun", "deepspeed", "srun"),
}
"""By scheduler; on the last two a job has two nodes, with one process each."""
EVENTS = {
    "slurm": ("power", "cable", "slurmd", "requeue", "cancel", "time limit", "drain", "suspend", "controller"),
    "ssh": ("power", "cable", "sshd"),
}
"""What the scheduler, its people or the machines do to a job; the second node is concerned where one is."""


@dataclass(frozen=True)
class Cell:
    """One fault.

    Attributes:
        what: The kind of fault, and its value after a colon: `signal:KILL`, `exit:3`, `raise:ValueError`,
            `peer:EPIPE`, `download:timeout`, `storage:EIO`, `hang:stop`, `leave`, `memory`, `torn`, `event:power`.
        who: A member of RANKS or OUTSIDE, or `scheduler` for an event.
        when: A member of PLACES.
        launcher: The launcher of the job.
        scheduler: A key of LAUNCHERS.
    """

    what: str
    who: str
    when: str
    launcher: str
    scheduler: str = "local"

    @property
    def kind(self) -> str:
        return self.what.partition(":")[0]

    @property
    def value(self) -> str:
        return self.what.partition(":")[2]

    @property
    def key(self) -> str:
        key = f"{self.what}/{self.who}/{self.when}/{self.launcher}".replace(" ", "-")
        return key if self.scheduler == "local" else f"{self.scheduler}/{key}"

    @property
    def open(self) -> bool:
        """Whether rules may be changed for it."""
        return self._digest[0] % 2 == 0

    @property
    def accounting(self) -> bool:
        """Whether its Slurm has accounting."""
        return self._digest[1] % 2 == 0

    @property
    def _digest(self) -> bytes:
        return hashlib.sha256(self.key.encode()).digest()


def faults() -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Each fault, in whom it can be, and when."""
    anywhen = PLACES
    for name in SIGNALS:
        yield f"signal:{name}", RANKS, anywhen
    for name in ("KILL", "TERM", "SEGV"):
        yield f"signal:{name}", OUTSIDE, ("first step", "middle")
    for code in EXITS:
        yield f"exit:{code}", RANKS, anywhen
    yield "leave", RANKS, ("imports", "rendezvous", "first step", "middle", "save")
    for name in EXCEPTIONS:
        yield f"raise:{name}", RANKS, anywhen
    for name in PEER_ERRORS:
        yield f"peer:{name}", ("first", "other"), ("rendezvous", "first step", "middle", "end")
    for name in DOWNLOAD_ERRORS:
        yield f"download:{name}", RANKS, ("imports", "first step")
    for name in STORAGE_ERRORS:
        yield f"storage:{name}", RANKS, ("first step", "middle", "save")
    for name in HANGS:
        yield f"hang:{name}", RANKS, ("rendezvous", "first step", "middle", "save", "end")
    yield "memory", RANKS, ("imports", "middle")
    yield "torn", ("first",), ("save",)


def cells(scheduler: str = "local") -> list[Cell]:
    """Every cell of a scheduler, in a fixed order in which kinds mix, so that any beginning is a sample."""
    every = [
        Cell(what, who, when, launcher, scheduler)
        for what, whom, moments in faults()
        for who in whom
        for when in moments
        for launcher in LAUNCHERS[scheduler]
        # One process has no others, and no launcher that could be killed.
        if launcher != "none" or who in ("first", "script", "watcher")
    ]
    random.Random(SEED).shuffle(every)
    events = [
        Cell(f"event:{name}", "scheduler", when, launcher, scheduler)
        for name in EVENTS.get(scheduler, ())
        for when in ("first step", "middle")
        for launcher in LAUNCHERS[scheduler]
    ]
    return events + every


def sample(count: int, most: int) -> list[Cell]:
    """Cells of the open half for `make test`, `most` of them with torchrun, which takes seconds to start.

    Every kind of fault, whoever it can be in, and every moment is among them. What takes longest comes first.
    """
    usable = [cell for cell in cells() if cell.open and cell.launcher in ("none", "torchrun")]
    usable.sort(key=lambda cell: cell.launcher == "torchrun")
    first: dict[object, Cell] = {}
    for cell in usable:
        for seen in (cell.kind, cell.when, (cell.who,)):
            first.setdefault(seen, cell)
    chosen = list(dict.fromkeys(first.values()))
    others = [cell for cell in usable if cell not in chosen]
    left = most - sum(cell.launcher == "torchrun" for cell in chosen)
    chosen += [cell for cell in others if cell.launcher == "torchrun" and cell.who != "first"][:left]
    chosen += [cell for cell in others if cell not in chosen][: count - len(chosen)]
    return sorted(chosen, key=lambda cell: (cell.kind != "hang", cell.launcher == "none"))
