"""A `parallel:` block on a number of processes, and the shape of the model that they share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.job.parallel import Parallel


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
