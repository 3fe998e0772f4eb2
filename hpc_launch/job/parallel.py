"""`parallel:` of a job file: model parallelism."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Parallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model parallelism, in Megatron's terms."""

    tp: Annotated[
        int, Meta(description="Tensor parallel size: GPUs that share each layer. Keep it within one node.", ge=1)
    ] = 1
    pp: Annotated[
        int, Meta(description="Pipeline parallel size: number of stages that the layers are divided into.", ge=1)
    ] = 1
    cp: Annotated[int, Meta(description="Context parallel size: GPUs that share each sequence.", ge=1)] = 1
    ep: Annotated[
        int,
        Meta(
            description="Expert parallel size: GPUs that share the experts of a layer. Requires no additional GPUs.",
            ge=1,
        ),
    ] = 1
    etp: Annotated[int | None, Meta(description="Tensor parallel size within an expert. Default: `tp`.", ge=1)] = None
    vpp: Annotated[
        int | None,
        Meta(description="Virtual stages per pipeline rank: interleaved schedule, for smaller pipeline bubbles.", ge=2),
    ] = None
    first_stage_layers: Annotated[
        int | None,
        Meta(
            description="Layers of the first pipeline stage, where PP does not divide the layers. The other stages "
            "share the rest evenly.",
            ge=1,
        ),
    ] = None
    last_stage_layers: Annotated[int | None, Meta(description="Layers of the last pipeline stage.", ge=1)] = None
    count_embedding: Annotated[
        bool,
        Meta(
            description="Count the embedding as a layer when layers are divided into stages: the first stage has one "
            "less. Unlike `first_stage_layers`, it suits virtual stages."
        ),
    ] = False
    count_loss: Annotated[
        bool, Meta(description="Count the output layer and the loss as a layer: the last stage has one less.")
    ] = False
    sequence_parallel: Annotated[
        bool, Meta(description="Also split norms and dropouts along the sequence. Requires `tp` above 1.")
    ] = False
    distributed_optimizer: Annotated[
        bool, Meta(description="Shard optimizer states over the data-parallel replicas, like ZeRO 1.")
    ] = False
    overlap: Annotated[
        bool, Meta(description="Overlap communication with computation: gradients, parameters and pipeline stages.")
    ] = False
    micro_batch: Annotated[int, Meta(description="Samples per replica and micro batch.", ge=1)] = 1
    global_batch: Annotated[
        int | None, Meta(description="Samples per step over all GPUs. Default: one micro batch per replica.", ge=1)
    ] = None

    @property
    def model_parallel(self) -> int:
        """Number of processes that share one copy of the model."""
        return self.tp * self.pp * self.cp
