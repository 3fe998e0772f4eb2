"""The memory that one GPU needs, by category."""

from __future__ import annotations

from msgspec import Struct


class MemoryEstimate(Struct, frozen=True, kw_only=True):
    """Bytes on the GPU that needs the most. `low` and `high` enclose `total`, the best estimate."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    """Output layer and loss."""
    buffers: int
    """Communication buckets, and weights gathered for a moment."""
    context: int
    """CUDA's and NCCL's own memory, which PyTorch's allocator does not count."""
    fragmentation: int
    """Allowance for what the allocator reserves but cannot use."""
    low: int
    high: int
    stage: int = 0
    """The pipeline stage of this GPU."""

    @property
    def states(self) -> int:
        """Parameters, gradients and optimizer states: what no smaller batch and no recomputation can avoid."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def allocated(self) -> int:
        """What PyTorch's allocator hands out at the peak (`torch.cuda.max_memory_allocated`)."""
        return self.states + self.activations + self.logits + self.buffers

    @property
    def total(self) -> int:
        """The best estimate of all that the GPU must hold."""
        return self.allocated + self.context + self.fragmentation
