"""A `parallel:` block on a number of processes, and the shape of the model that they share."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.job.launcher import Parallel


class ModelShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizes of a transformer that limit its parallelism. None: not checked."""

    num_layers: Annotated[int | None, Meta(description="Transformer layers.", ge=1)] = None
    hidden_size: Annotated[int | None, Meta(description="Width of the residual stream.", ge=1)] = None
    heads: Annotated[int | None, Meta(description="Attention heads.", ge=1)] = None
    query_groups: Annotated[
        int | None, Meta(description="Groups of grouped-query attention. Default: one per head.", ge=1)
    ] = None
    num_experts: Annotated[int | None, Meta(description="Experts per mixture-of-experts layer.", ge=1)] = None
    seq_length: Annotated[int | None, Meta(description="Tokens per sequence.", ge=1)] = None


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
