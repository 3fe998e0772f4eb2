"""The right answer for a cell, by principles; written before anything was run.

1. What the operating system saw decides before what was printed: a signal is a crash, whoever folds it into a code.
2. An exception is what its type says, and the code that raised it: a socket to a peer is the network between ranks, a
   download library a download, a write the storage.
3. What may pass by itself is tried again; what only a person can change stops. A crash from inside before any progress
   may be either: nothing shows yet that another attempt would get further.
4. A place is named only if one rank failed; where all fail alike, any of them or none is right.
5. A training that is over is not trained again.
6. Nothing that failed is called a success, and nobody healthy is named.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.prove.grid.cells import Cell

CRASH = frozenset({"segfault_or_abort"})
CODE = frozenset({"user_code_error"})
AGAIN = frozenset({"RETRY", "RETRY_ELSEWHERE"})
STOP = frozenset({"STOP"})
CHANGED = frozenset({"RETRY_CHANGED"})
NETWORK = frozenset({"nccl_system_error", "rendezvous_failure", "nccl_timeout"})


@dataclass(frozen=True)
class Answer:
    """What is right.

    Attributes:
        classes: Of which one is right.
        verdicts: Of which one is right.
        rank: The rank that is to be named; None where any or none is right, or no rank failed.
        must_name: Whether naming no rank is wrong.
        node: Which node may be blamed: its place in the job; None for no node.
    """

    classes: frozenset[str]
    verdicts: frozenset[str]
    rank: int | None = None
    must_name: bool = False
    node: int | None = None


EXCEPTION_CLASSES = {
    "ModuleNotFoundError": frozenset({"import_error"}),
    "ImportError": frozenset({"import_error"}),
    "FileNotFoundError": frozenset({"data_error", "user_code_error", "config_error"}),
    "IsADirectoryError": frozenset({"data_error", "user_code_error", "config_error"}),
    "JSONDecodeError": frozenset({"data_error", "user_code_error", "config_error"}),
    "UnicodeDecodeError": frozenset({"data_error", "user_code_error"}),
    "MemoryError": frozenset({"host_oom"}),
}
STORAGE = {
    "ENOSPC": (frozenset({"disk_full_or_quota"}), STOP),
    "EDQUOT": (frozenset({"disk_full_or_quota"}), STOP),
    "EIO": (frozenset({"filesystem_error"}), AGAIN),
    "ESTALE": (frozenset({"filesystem_error"}), AGAIN),
    "ETIMEDOUT": (frozenset({"filesystem_error"}), AGAIN),
    "EROFS": (frozenset({"filesystem_error", "permission_denied"}), AGAIN | STOP),
    "EACCES": (frozenset({"permission_denied"}), STOP),
    "EMFILE": (frozenset({"config_error", "user_code_error"}), STOP),
}
_LOST = Answer(frozenset({"node_failure"}), AGAIN, node=1)
_FINE = Answer(frozenset({"success"}), frozenset({"NONE"}))
EVENTS = {
    "power": _LOST,
    "cable": _LOST,
    "sshd": _LOST,
    "requeue": Answer(frozenset({"preempted", "unknown"}), AGAIN | {"CONTINUE"}),
    "cancel": Answer(frozenset({"cancelled_by_user"}), STOP),
    "time limit": Answer(frozenset({"time_limit"}), frozenset({"CONTINUE"})),
    "slurmd": _FINE,  # the job does not depend on it
    "drain": _FINE,
    "suspend": _FINE,
    # One that had not saved the start of the job makes Slurm cancel it: what passes by itself is tried again.
    "controller": Answer(_FINE.classes | _LOST.classes, _FINE.verdicts | {"RETRY"}),
}
ENDED_BY_SIGNAL_CODES = {"137", "139", "143"}
"""A program that ends with 128 + n may pass on the signal of a child: a crash and a failure are both right, and what is
right for the signal itself."""


def answer(cell: Cell) -> Answer:
    """The right answer for a cell."""
    if cell.kind == "event":
        return EVENTS[cell.value]
    classes, verdicts = _failure(cell)
    if cell.when == "end" and cell.kind != "hang":
        # The training is over and saved: the failure may be told, the work is not repeated.
        verdicts = STOP | {"NONE"}
        classes |= {"success"}
    if cell.when == "end" and cell.kind == "hang":
        verdicts = AGAIN | STOP | {"NONE"}
    rank = {"first": 0, "other": 1}.get(cell.who)
    # Which of several waiting ranks made the others wait shows only from 1 to 3 of the order of evidence.
    must_name = rank is not None and cell.launcher != "none" and cell.kind not in {"leave", "torn"}
    return Answer(classes, verdicts, rank, must_name)


def _failure(cell: Cell) -> tuple[frozenset[str], frozenset[str]]:
    if cell.kind == "signal":
        return _signal(cell)
    if cell.kind == "torn":
        return CRASH, AGAIN
    if cell.kind == "exit":
        if cell.value in ENDED_BY_SIGNAL_CODES:
            return CRASH | CODE | ({"unknown"} if cell.value == "143" else set()), AGAIN | STOP
        return CODE | {"config_error", "unknown"}, STOP
    if cell.kind == "leave":
        # It is not finished, and nobody knows why it left: not success, and not repeated for ever.
        return frozenset({"unknown", *CODE, *CRASH, *NETWORK}), STOP | AGAIN
    if cell.kind == "raise":
        return _exception(cell)
    if cell.kind == "peer":
        return NETWORK, AGAIN
    if cell.kind == "download":
        return frozenset({"network_download_error"}), AGAIN | STOP
    if cell.kind == "storage":
        return STORAGE[cell.value]
    if cell.kind == "memory":
        return frozenset({"host_oom"}), CHANGED | STOP
    # Others that give up waiting report a timeout: the same failure, and the same act.
    return frozenset({"hang_no_progress", "nccl_timeout", "rendezvous_failure"}), AGAIN


def _signal(cell: Cell) -> tuple[frozenset[str], frozenset[str]]:
    if cell.who == "watcher":
        return frozenset({"success"}), frozenset({"NONE"})  # the training does not depend on it
    if cell.value == "INT" and cell.who not in ("launcher", "script"):
        return CRASH | CODE | {"cancelled_by_user"}, AGAIN | STOP
    if cell.value in {"TERM", "INT", "HUP", "QUIT"}:
        return CRASH | {"cancelled_by_user", "unknown"}, AGAIN | STOP  # asked to end, by whom nobody knows
    if cell.who == "script":
        return CRASH | {"node_failure", "unknown"}, AGAIN
    further = cell.value == "KILL" or cell.when in {"middle", "save"}
    return CRASH, AGAIN if further else AGAIN | STOP


def _exception(cell: Cell) -> tuple[frozenset[str], frozenset[str]]:
    if cell.value == "MemoryError":
        return EXCEPTION_CLASSES["MemoryError"], CHANGED | STOP
    if cell.value == "KeyboardInterrupt":
        return CRASH | CODE | {"cancelled_by_user"}, AGAIN | STOP
    if cell.value == "SystemExit":  # sys.exit with a text
        return CODE | {"config_error", "unknown"}, STOP
    return EXCEPTION_CLASSES.get(cell.value, CODE), STOP
