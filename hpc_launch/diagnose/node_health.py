"""Node health: which nodes new jobs exclude, by the reports of a team's runs. Pure.

A report expires, and exclusions never empty a queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from hpc_launch.diagnose.diagnosis import NODE_UNFIT, Quote

AT_ONCE = frozenset({"gpu_hardware", "gpu_driver", "node_failure"})
"""Classes for which one report is enough. For all others two attempts must name the node: a network failure between two
nodes may be the fault of the other one, and what the node check finds may be that of another user (NODE_UNFIT)."""

EXPIRY_S = 24 * 3600.0
"""How long one report excludes a node. Each further report doubles it, up to MOST_S."""
MOST_S = 14 * 24 * 3600.0

CLOCK_ERROR_S = 600.0
"""A report from further in the future is ignored: its time is wrong, and it might never expire."""

FRACTION = 10
"""At most one node in so many is excluded, but always one where the job can do without it."""


class NodeReport(Struct, frozen=True, kw_only=True):
    """One attempt's report on a node; with `cleared`, a person's report that the node is healthy again."""

    time: float
    node: str
    by: str = ""
    failure_class: str = "unknown"
    cause: str | None = None
    run: str = ""
    attempt: int = 0
    job_id: str | None = None
    evidence: tuple[Quote, ...] = ()
    cleared: bool = False


class BadNode(Struct, frozen=True):
    """A node with reports that have not expired. Times are seconds since the epoch."""

    node: str
    notes: tuple[NodeReport, ...]
    """The oldest first."""
    expires: float
    avoided: bool
    """Whether new jobs exclude it; for some classes one report is not enough."""

    @property
    def count(self) -> int:
        """How many attempts named it."""
        return len(self.notes)


def standing(notes: Iterable[NodeReport], now: float) -> list[BadNode]:
    """The nodes with reports that have not expired, those with the most reports first."""
    by_node: dict[str, list[NodeReport]] = {}
    credible = (note for note in notes if now - 2 * MOST_S <= note.time <= now + CLOCK_ERROR_S)
    for note in sorted(credible, key=lambda note: note.time):
        if note.cleared:
            by_node.pop(note.node, None)
        else:
            by_node.setdefault(note.node, []).append(note)
    found = [_bad_node(node, known) for node, known in by_node.items()]
    return sorted((one for one in found if one.expires > now), key=lambda one: (-one.count, -one.expires, one.node))


def _bad_node(node: str, notes: Sequence[NodeReport]) -> BadNode:
    once = tuple({(note.run, note.attempt): note for note in notes}.values())
    lasts = min(EXPIRY_S * 2 ** min(len(once) - 1, 10), MOST_S)
    avoided = len(once) > 1 or (once[0].failure_class in AT_ONCE and once[0].cause != NODE_UNFIT)
    return BadNode(node, once, once[-1].time + lasts, avoided)


def excluded_nodes(
    nodes: Iterable[BadNode], size: int | None, needed: int, already: Sequence[str] = ()
) -> tuple[str, ...]:
    """The nodes that a new job excludes, the worst first; none where the size of the queue is not known.

    `nodes`: as `standing` gives them. `size`: of the queue. `needed`: how many nodes the job needs. `already`: nodes
    that it excludes in any case.
    """
    if size is None:
        return ()
    room = min(max(size // FRACTION, 1), size - needed) - len(set(already))
    names = [one.node for one in nodes if one.avoided and one.node not in already]
    return tuple(names[: max(room, 0)])
