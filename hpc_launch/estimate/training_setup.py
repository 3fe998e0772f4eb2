"""How a model is trained, as far as memory and time depend on it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hpc_launch.layouts.parallel_layout import ParallelLayout

Sharding = Literal["none", "zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp", "distributed_optimizer"]
"""What the data-parallel replicas share: nothing, or as ZeRO, PyTorch's FSDP or Megatron do."""
Optimizer = Literal["adam", "adam8bit", "muon", "sgd"]
Recompute = Literal["none", "selective", "full"]
Schedule = Literal["1f1b", "interleaved", "gpipe"]
Framework = Literal["megatron", "deepspeed", "pytorch"]


class TrainingSetup(Struct, frozen=True, kw_only=True):
    """A layout, and what else decides the memory of a GPU and the time of a step."""

    layout: ParallelLayout
    sequence: int
    """Tokens per sample."""
    sharding: Sharding = "none"
    shard_group: int | None = None
    """Replicas that share one copy of the states (HSDP); None for all."""
    framework: Framework = "pytorch"
    precision: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    gradient_bytes: int | None = None
    """Bytes per stored gradient element; None for the framework's default."""
    optimizer: Optimizer = "adam"
    recompute: Recompute = "none"
    flash_attention: bool = True
    fused_norm: bool = True
    """Whether norms are one kernel that keeps its input, and not several operations that keep their results."""
    dropout: bool = False
    """Whether attention and residual connections have dropout, whose masks are kept."""
    schedule: Schedule = "1f1b"
    offload_optimizer: bool = False
    offload_parameters: bool = False
    bucket_elements: int | None = None
    """Elements per communication bucket; None for the framework's default."""
    compiled: bool = False
    expandable_segments: bool = False
    """Whether PyTorch's allocator may grow its segments (PYTORCH_CUDA_ALLOC_CONF), so that little is left unused."""
    fused_loss: bool = False
    """Whether the loss is computed without a copy of the logits in 32 bits."""

    @property
    def data_parallel(self) -> int:
        """Ranks that could share the states outside experts: context-parallel ranks hold the same parameters."""
        return max(self.layout.dp, 1) * self.layout.parallel.cp

    @property
    def expert_tensor_parallel(self) -> int:
        """Ranks that divide each expert."""
        return self.layout.parallel.etp or self.layout.parallel.tp

    @property
    def expert_data_parallel(self) -> int:
        """Ranks that hold the same experts."""
        parallel = self.layout.parallel
        return max(self.layout.world_size // (self.expert_tensor_parallel * parallel.ep * parallel.pp), 1)

    @property
    def tokens(self) -> int:
        """Tokens of one micro batch on one GPU, before tensor parallelism divides them."""
        return self.sequence * self.layout.parallel.micro_batch // self.layout.parallel.cp
