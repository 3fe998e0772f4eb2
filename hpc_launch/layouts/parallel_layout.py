"""A `parallel:` block on a number of processes, the shape of the model that they share, and the nodes of their groups.

Ranks in Megatron-LM's default order, tp-cp-ep-dp-pp (core/parallel_state.py, RankGenerator): tensor-parallel neighbours
are adjacent, pipeline stages farthest apart. Experts divide the ranks of a stage in their own order, etp-ep-edp.

Batch sizes: global batch = micro batch × accumulation steps × data-parallel size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import gcd
from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpc_launch.base.findings import Finding, FindingCode, Place
from hpc_launch.job.launcher import Parallel


class Batch(Struct, frozen=True):
    """Samples per step over all GPUs, samples per GPU and micro step, and micro steps per step.

    None: unknown here; the program derives it once it knows its number of processes.
    """

    train: int | None
    micro: int | None
    accumulation: int | None


def settle(asked: Batch, replicas: int | None, places: Sequence[Place]) -> tuple[Batch | None, list[Finding]]:
    """Derive the missing numbers as DeepSpeed does, but never round.

    `replicas` is the data-parallel size; if None, only what does not depend on it is checked. `places` are those of the
    three numbers, in the order of Batch. If only the global or only the micro batch is given, the accumulation is 1.
    (deepspeed 0.19.8, runtime/config.py, _set_batch_related_parameters, rounds down and then asserts.)
    """
    train, micro, steps = asked.train, asked.micro, asked.accumulation
    if train is None and micro is None:
        if steps is None:
            micro = steps = 1
        else:
            message = "gradient accumulation alone does not determine the batch size"
            return _refused(message, places[2], "set the micro batch or the global batch")
    if train is None:
        steps = 1 if steps is None else steps
        return Batch(None if replicas is None else (micro or 1) * steps * replicas, micro, steps), []
    if replicas is not None and micro is None and steps is None:
        steps = 1
    known = (micro or 1) * (steps or 1) * (replicas or 1)
    if replicas is not None and micro is not None and steps is not None and train != known:
        message = f"the global batch is {train}, but {micro} × {steps} × {replicas} replicas = {known}"
        return _refused(message, places[0], f"set it to {known}, or remove one of the three")
    if train % known:
        factors = [f"micro batch {micro}" if micro else "", f"accumulation {steps}" if steps and steps > 1 else ""]
        factors.append(f"{replicas} replicas" if replicas is not None else "")
        near = [str(number) for number in (train // known * known, train // known * known + known) if number > 0]
        message = f"the global batch {train} is not divisible by {' × '.join(filter(None, factors))} = {known}"
        return _refused(message, places[0], f"use {' or '.join(near)}")
    rest = train // known
    return Batch(train, micro, steps) if replicas is None else Batch(train, micro or rest, steps or rest), []


def _refused(message: str, place: Place, hint: str) -> tuple[None, list[Finding]]:
    return None, [Finding(FindingCode.INCONSISTENT_BATCH, message, place, hint)]


_Size = Annotated[int | None, Meta(ge=1)]


class ModelShape(Struct, frozen=True, kw_only=True):
    """The sizes of a transformer that limit its parallelism. None: not checked."""

    num_layers: _Size = None
    """Transformer layers."""
    hidden_size: _Size = None
    """Width of the residual stream."""
    heads: _Size = None
    """Attention heads."""
    query_groups: _Size = None
    """Groups of grouped-query attention. Default: one per head."""
    num_experts: _Size = None
    """Experts per mixture-of-experts layer."""
    seq_length: _Size = None
    """Tokens per sequence."""


class ParallelLayout(Struct, frozen=True):
    """A `Parallel` on a number of processes."""

    parallel: Parallel
    world_size: int

    @property
    def model_parallel(self) -> int:
        """Processes per replica of the model."""
        return self.parallel.model_parallel

    @property
    def dp(self) -> int:
        """Replicas of the model (0 if there are too few processes for one)."""
        return self.world_size // self.model_parallel

    @property
    def global_batch(self) -> int:
        """Samples per step over all GPUs."""
        return self.parallel.global_batch or self.parallel.micro_batch * max(self.dp, 1)

    @property
    def microbatches(self) -> int:
        """Micro batches per replica and step: the gradient accumulation."""
        return self.global_batch // (self.parallel.micro_batch * max(self.dp, 1))


UNEVEN_FIELDS = ("first_stage_layers", "last_stage_layers", "count_embedding", "count_loss")
_MOST = 2
"""A stage of so many times the average is not proposed: all others would wait for it."""


def stage_units(layers: int, parallel: Parallel) -> tuple[int, ...] | None:
    """Layers of each stage, with embedding and loss where they count; None if they cannot be divided like this."""
    counted = parallel.count_embedding + parallel.count_loss
    first, last = parallel.first_stage_layers, parallel.last_stage_layers
    before, after = () if first is None else (first,), () if last is None else (last,)
    rest = layers + counted - sum(before + after)
    middle = parallel.pp - len(before + after)
    if (
        (before + after and counted)
        or middle < 0
        or rest < 0
        or bool(rest) != bool(middle)
        or (middle and rest % middle)
    ):
        return None
    return (*before, *((rest // middle,) * middle if middle else ()), *after)


def megatron_parts(layers: int, parallel: Parallel) -> tuple[int, ...] | None:
    """Layers of each virtual stage, in the order of the layers; None if they cannot be divided like this."""
    units, virtual = stage_units(layers, parallel), parallel.vpp or 1
    if units is None or any(size % virtual for size in units):
        return None
    parts = [size // virtual for _ in range(virtual) for size in units]
    parts[0] -= parallel.count_embedding
    parts[-1] -= parallel.count_loss
    return tuple(parts)


def even_parts(layers: int, parts: int) -> tuple[int, ...]:
    """As even as possible, the rest in the middle, where no embedding or output layer is.

    torchtitan 9dec370, parallelisms/pipelining_utils.py.
    """
    base, rest = divmod(layers, parts)
    return tuple(base + (1 if 1 <= part <= rest else 0) for part in range(parts))


@lru_cache(maxsize=4096)
def split_for(layers: int, pp: int) -> Parallel | None:
    """A `parallel:` whose `pp` stages Megatron accepts, with nothing but that set; None if no division is sensible."""
    even = Parallel(pp=pp)
    if layers % pp == 0:
        return even
    for embedding, loss in ((True, True), (False, True), (True, False)):
        counting = Parallel(pp=pp, count_embedding=embedding, count_loss=loss)
        if stage_units(layers, counting) is not None and layers >= pp:
            return counting
    found = []
    for middle in (-(-layers // pp), layers // pp):
        rest = layers - middle * (pp - 2)
        if middle and rest >= 2:
            found.append(Parallel(pp=pp, first_stage_layers=-(-rest // 2), last_stage_layers=rest // 2))
    best = min(found, key=lambda split: max(stage_units(layers, split) or ()), default=None)
    return best if best is not None and max(stage_units(layers, best) or ()) <= _MOST * -(-layers // pp) else None


def virtual_sizes(layers: int, split: Parallel) -> list[int]:
    """The numbers of virtual stages per pipeline rank that this division allows."""
    common = gcd(*(stage_units(layers, split) or (1,)))
    return [size for size in range(2, common + 1) if common % size == 0]


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
    count: int
    """Number of groups."""
    spread: Spread


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
    return tuple(
        RankGroups(
            kind=shape.kind,
            size=shape.size,
            count=layout.world_size // shape.size,
            spread=_spread(members(shape, layout.world_size), ends),
        )
        for shape in group_shapes(layout)
        if shape.size > 1
    )


@lru_cache(maxsize=4096)
def spread(size: int, stride: int, world_size: int, per_node: int) -> Spread:
    """How groups of this shape lie on nodes of equal size. The last node may be partly used."""
    if stride * size <= per_node and per_node % (stride * size) == 0:
        return Spread(1, size)
    ends = tuple(range(per_node, world_size + per_node, per_node))
    return _spread(members(GroupShape("dp", size, stride), world_size), ends)


def members(shape: GroupShape, world_size: int) -> list[range]:
    """The ranks of each group."""
    block = shape.size * shape.stride
    return [
        range(start + offset, start + offset + block, shape.stride)
        for start in range(0, world_size, block)
        for offset in range(shape.stride)
    ]


def _spread(groups: list[range], ends: tuple[int, ...]) -> Spread:
    """How these groups lie on nodes that end at these ranks."""
    counts = [Counter(bisect_right(ends, rank) for rank in group) for group in groups]
    return Spread(max(map(len, counts)), min(min(count.values()) for count in counts))
