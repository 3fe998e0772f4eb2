"""Groups of ranks that communicate with each other, and the nodes that each group covers.

Ranks in Megatron-LM's default order, tp-cp-ep-dp-pp (core/parallel_state.py, RankGenerator): tensor-parallel neighbours
are adjacent, pipeline stages farthest apart. Experts divide the ranks of a stage in their own order, etp-ep-edp.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from msgspec import Struct

from hpc_launch.layouts.parallel_layout import ParallelLayout

GroupKind = Literal["tp", "cp", "dp", "pp", "etp", "ep", "edp"]


class GroupShape(Struct, frozen=True):
    """Groups of one kind: the first rank, and then each `stride`-th."""

    kind: GroupKind
    size: int
    stride: int


class Spread(Struct, frozen=True):
    """How groups of one kind lie on nodes. 1 node: they use the links inside the node only."""

    nodes: int
    """Nodes that a group covers, at most."""
    per_node: int
    """Ranks of a group on one of its nodes, at least."""


class RankGroups(Struct, frozen=True, kw_only=True):
    """All groups of one kind, and how they lie on the nodes."""

    kind: GroupKind
    size: int
    groups: tuple[tuple[int, ...], ...]
    """The ranks of each group."""
    spread: Spread
    crossing: int
    """How many of the groups cover more than one node."""


def group_shapes(layout: ParallelLayout) -> tuple[GroupShape, ...]:
    """Every kind of group, also those of size 1. Those of experts only if the layout divides experts.

    The number of processes must be divisible by TP × PP × CP, and by ETP × EP × PP.
    """
    parallel = layout.parallel
    stage = layout.world_size // parallel.pp
    shapes = [
        GroupShape("tp", parallel.tp, 1),
        GroupShape("cp", parallel.cp, parallel.tp),
        GroupShape("dp", layout.dp, parallel.tp * parallel.cp),
        GroupShape("pp", parallel.pp, stage),
    ]
    expert_tensor = parallel.etp or parallel.tp
    if parallel.ep > 1 or expert_tensor != parallel.tp:
        experts = expert_tensor * parallel.ep
        shapes += [
            GroupShape("etp", expert_tensor, 1),
            GroupShape("ep", parallel.ep, expert_tensor),
            GroupShape("edp", stage // experts, experts),
        ]
    return tuple(shapes)


def rank_groups(layout: ParallelLayout, node_sizes: Sequence[int]) -> tuple[RankGroups, ...]:
    """The groups of more than one rank, by kind. `node_sizes` are the processes of each node, in order of ranks.

    Raises ValueError if the nodes do not hold exactly the layout's processes.
    """
    if sum(node_sizes) != layout.world_size:
        message = f"the nodes hold {sum(node_sizes)} processes, the layout needs {layout.world_size}"
        raise ValueError(message)
    ends = tuple(accumulate(node_sizes))
    result = []
    for shape in group_shapes(layout):
        if shape.size > 1:
            groups = _members(shape.size, shape.stride, layout.world_size)
            counts = [_per_node(group, ends) for group in groups]
            result.append(
                RankGroups(
                    kind=shape.kind,
                    size=shape.size,
                    groups=tuple(tuple(group) for group in groups),
                    spread=_spread(counts),
                    crossing=sum(len(count) > 1 for count in counts),
                )
            )
    return tuple(result)


@lru_cache(maxsize=4096)
def spread(size: int, stride: int, world_size: int, per_node: int) -> Spread:
    """How groups of this shape lie on nodes of equal size. The last node may be partly used."""
    if stride * size <= per_node and per_node % (stride * size) == 0:
        return Spread(1, size)
    ends = tuple(range(per_node, world_size + per_node, per_node))
    return _spread([_per_node(group, ends) for group in _members(size, stride, world_size)])


def _members(size: int, stride: int, world_size: int) -> list[range]:
    block = size * stride
    return [
        range(start + offset, start + offset + block, stride)
        for start in range(0, world_size, block)
        for offset in range(stride)
    ]


def _per_node(group: range, ends: tuple[int, ...]) -> Counter[int]:
    """Ranks of a group on each of its nodes."""
    return Counter(bisect_right(ends, rank) for rank in group)


def _spread(counts: list[Counter[int]]) -> Spread:
    return Spread(max(map(len, counts)), min(min(count.values()) for count in counts))
