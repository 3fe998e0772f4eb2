"""A picture of a layout: the ranks of each node in their tensor-parallel groups, and the links of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from hpc_launch.estimate.gpu import Gpu
from hpc_launch.layouts.groups import GroupKind, RankGroups
from hpc_launch.layouts.parallel_layout import ParallelLayout

MOST_NODES = 8
_NAMES: dict[GroupKind, str] = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "dp": "data parallel",
    "pp": "pipeline",
    "etp": "tensor parallel in experts",
    "ep": "expert parallel",
    "edp": "data parallel of experts",
}


def node_lines(layout: ParallelLayout, node_sizes: Sequence[int]) -> Iterator[str]:
    """A line for each node: its ranks, a bracket around each tensor-parallel group, and their stages and replicas."""
    parallel = layout.parallel
    ends = list(accumulate(node_sizes))
    for number, (size, end) in enumerate(zip(node_sizes, ends, strict=True), 1):
        if number > MOST_NODES - 1 and len(node_sizes) > MOST_NODES:
            yield f"… and {len(node_sizes) - number + 1} more nodes"
            return
        ranks = range(end - size, end)
        blocks: dict[int, list[int]] = {}
        for rank in ranks:
            blocks.setdefault(rank // parallel.tp if parallel.tp > 1 else 0, []).append(rank)
        inner = parallel.tp * parallel.cp
        where = []
        if parallel.pp > 1:
            where.append(_span("stage", [rank // (inner * layout.dp) for rank in ranks]))
        if layout.dp > 1:
            where.append(_span("replica", [rank // inner % layout.dp for rank in ranks]))
        brackets = " ".join(f"[{_range(block)}]" for block in blocks.values())
        yield f"node {number}  {brackets}" + (f"  {', '.join(where)}" if where else "")


def link_lines(groups: Sequence[RankGroups], gpu: Gpu | None) -> Iterator[str]:
    """A line for each kind of group: its size, and the links that it uses."""
    for one in groups:
        speed = ""
        if gpu is not None:
            rate = gpu.node_bandwidth if one.spread.nodes == 1 else gpu.network_bandwidth
            speed = f", {rate / 1e9:.0f} GB/s per GPU"
        where = "within a node" if one.spread.nodes == 1 else f"across {one.spread.nodes} nodes"
        count = f"{len(one.groups)} group{'s' if len(one.groups) > 1 else ''} of {one.size}"
        yield f"{_NAMES[one.kind]}: {count}, {where}{speed}"


def _span(word: str, numbers: Sequence[int]) -> str:
    low, high = min(numbers) + 1, max(numbers) + 1
    return f"{word} {low}" if low == high else f"{word}s {low}–{high}"


def _range(ranks: Sequence[int]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}–{ranks[-1]}"
