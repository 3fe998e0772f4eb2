"""How a model is laid over the processes of a job: the `parallel:` block of a job file, and the model's shape."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Parallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the model is laid over the processes, in Megatron's terms."""

    tp: Annotated[
        int, Meta(description="Tensor parallel: GPUs that share each layer. Keep it within a node.", ge=1)
    ] = 1
    pp: Annotated[int, Meta(description="Pipeline parallel: stages that share the layers.", ge=1)] = 1
    cp: Annotated[int, Meta(description="Context parallel: GPUs that share each sequence.", ge=1)] = 1
    ep: Annotated[
        int, Meta(description="Expert parallel: GPUs that share the experts of a layer. Needs no further GPUs.", ge=1)
    ] = 1
    etp: Annotated[int | None, Meta(description="Tensor parallel inside an expert; as `tp` if left out.", ge=1)] = None
    vpp: Annotated[
        int | None, Meta(description="Virtual stages on each pipeline rank: interleaving, for smaller bubbles.", ge=2)
    ] = None
    sequence_parallel: Annotated[
        bool, Meta(description="Share norms and dropouts along the sequence, too. Needs `tp` above 1.")
    ] = False
    distributed_optimizer: Annotated[
        bool, Meta(description="Share optimizer states over the data-parallel replicas, as ZeRO 1.")
    ] = False
    overlap: Annotated[bool, Meta(description="Communicate while computing: gradients, parameters, stages.")] = False
    micro_batch: Annotated[int, Meta(description="Samples a replica takes at once.", ge=1)] = 1
    global_batch: Annotated[
        int | None, Meta(description="Samples a step over all GPUs; one micro batch a replica if left out.", ge=1)
    ] = None


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
        return self.parallel.tp * self.parallel.pp * self.parallel.cp

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

    @property
    def bubble(self) -> float:
        """The part of a step that the pipeline waits, relative to its work: (PP - 1) / (VPP × M)."""
        return (self.parallel.pp - 1) / ((self.parallel.vpp or 1) * max(self.microbatches, 1))
