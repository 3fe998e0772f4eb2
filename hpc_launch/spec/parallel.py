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
