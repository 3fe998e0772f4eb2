"""What the watchdogs of several ranks say of one collective: who is behind, and whether they do the same at all."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from hpc_launch.recover.evidence import Hit

_WORK = re.compile(r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)(?:, NumelIn=(\d+))?(?:, NumelOut=(\d+))?")
_MOST_RANKS = 100_000


class Collectives(Struct, frozen=True):
    """`behind` is the rank that did not come, where the reports show it."""

    out_of_step: bool = False
    """Two ranks give different operations or sizes to the same number: the program took different ways."""
    behind: int | None = None


def compare(hits: Iterable[Hit]) -> Collectives:
    """Lay the reports of all ranks side by side."""
    works: dict[int, set[tuple[str, str | None]]] = {}
    last: dict[int, int] = {}
    for hit in hits:
        match = _WORK.search(hit.text)
        if match is None or hit.rank is None:
            continue
        number = int(match[1])
        # The in and out sizes of gathers and broadcasts differ by rank in some groups; operations never do.
        size = match[3] if match[2] in {"ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"} else None
        works.setdefault(number, set()).add((match[2], size))
        last.setdefault(hit.rank, number)
    out_of_step = any(len(kinds) > 1 for kinds in works.values())
    return Collectives(out_of_step, _behind(last))


def _behind(last: dict[int, int]) -> int | None:
    """The one rank that said nothing while all around it did; else the one whose number is lowest."""
    if len(last) < 3 or max(last) > _MOST_RANKS:
        return None
    missing = [rank for rank in range(max(last)) if rank not in last]
    if len(missing) == 1:
        return missing[0]
    lowest = min(last.values())
    late = [rank for rank, number in last.items() if number == lowest]
    return late[0] if len(late) == 1 and not missing else None
