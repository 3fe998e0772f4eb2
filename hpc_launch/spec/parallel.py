"""`parallel:` of a job file: how a model is laid over the processes."""

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

    @property
    def model_parallel(self) -> int:
        """Processes that share one copy of the model."""
        return self.tp * self.pp * self.cp
