"""A `parallel:` block on a number of processes, and the shape of the model that is laid over them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from hpc_launch.spec.parallel import Parallel


class ModelShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizes of a transformer that decide how it can be divided. What is left out is not checked."""

    num_layers: Annotated[int | None, Meta(description="Transformer layers.", ge=1)] = None
    hidden_size: Annotated[int | None, Meta(description="Width of the residual stream.", ge=1)] = None
    heads: Annotated[int | None, Meta(description="Attention heads.", ge=1)] = None
    query_groups: Annotated[
        int | None, Meta(description="Groups of grouped-query attention; as many as heads if left out.", ge=1)
    ] = None
    num_experts: Annotated[int | None, Meta(description="Experts of a mixture-of-experts layer.", ge=1)] = None
    seq_length: Annotated[int | None, Meta(description="Tokens in a sequence.", ge=1)] = None


class Layout(Struct, frozen=True):
    """A `Parallel` on a number of processes: what follows from both."""

    parallel: Parallel
    world_size: int

    @property
    def model_parallel(self) -> int:
        """Processes that share one copy of the model."""
        return self.parallel.model_parallel

    @property
    def dp(self) -> int:
        """Replicas of the model (0 where the processes do not suffice for one)."""
        return self.world_size // self.model_parallel

    @property
    def global_batch(self) -> int:
        """Samples a step over all GPUs."""
        return self.parallel.global_batch or self.parallel.micro_batch * max(self.dp, 1)

    @property
    def microbatches(self) -> int:
        """Micro batches that a replica takes for one step: the accumulation."""
        return self.global_batch // (self.parallel.micro_batch * max(self.dp, 1))
