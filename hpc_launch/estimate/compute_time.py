"""Time of a micro batch's computation on one GPU: one layer, and the output layer.

Constants without a source of their own were fitted as those of `step_time`.
"""

from __future__ import annotations

from typing import NamedTuple

from hpc_launch.estimate.computation import layer_work
from hpc_launch.estimate.gpu import Gpu
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.model.model_config import ModelConfig

MATRIX_EFFICIENCY = 0.82
"""Part of the peak that large matrix multiplications reach."""
HALF_WIDTH = 450
"""Width of a matrix, after tensor parallelism divided it, with half of that efficiency."""
HALF_TOKENS = 150
"""Tokens per micro batch with half of that efficiency."""
ATTENTION_EFFICIENCY = 0.55
"""Part of the peak that FlashAttention 2 reaches (arXiv 2307.08691, section 4.1: 50 to 73 % on A100)."""
ATTENTION_FLOPS = 3.5e14
"""What FlashAttention 2 reaches at most: 35 % of an H100 (arXiv 2407.08608, section 1)."""
CONTEXT_COST = 0.08
"""Slow-down of the attention by each further part of the sequence: smaller blocks, and their sums."""
PLAIN_ATTENTION = 4.0
"""FlashAttention's speed-up over plain attention (arXiv 2307.08691, section 4.1: 3 to 10)."""
FP8_GAIN = 1.65
"""Speed of fp8 matrix multiplications, with their casts, relative to bf16. The peak is twice as high."""
TRAFFIC_HIDDEN = 60
"""Bytes per token and hidden unit that norms, residual connections and casts move in a layer's forward pass."""
TRAFFIC_INNER = 8
"""Bytes per token and unit of MLP and attention, for activation functions and positions."""
COMPILED_TRAFFIC = 0.5
"""Part of that traffic that is left after torch.compile or fused kernels."""
MEMORY_EFFICIENCY = 0.8
"""Part of the memory bandwidth that such kernels reach."""
LAUNCH = 2e-4
"""Seconds that the CPU takes to launch a layer's forward pass: 40 kernels of 5 µs."""


class ComputeTime(NamedTuple):
    """Seconds for one micro batch."""

    layer: float
    """One layer: forward, backward and what is computed again."""
    attention: float
    """Forward pass of its attention alone."""
    head: float
    """Output layer and loss, forward and backward."""


def compute_time(model: ModelConfig, setup: TrainingSetup, gpu: Gpu) -> ComputeTime:
    """Estimate from operations and memory traffic."""
    tokens = setup.sequence * setup.layout.parallel.micro_batch / setup.layout.parallel.cp
    attention = _attention(model, setup, gpu, tokens)
    forward = max(_matrices(model, setup, gpu, tokens) + attention + _traffic(model, setup, gpu, tokens), LAUNCH)
    again = 0.0
    if setup.recompute == "full":
        again = forward
    elif setup.recompute == "selective":
        # torchtitan's selective checkpointing recomputes every other matrix multiplication, Megatron's the attention.
        again = forward / 2 if setup.framework == "pytorch" else attention
    return ComputeTime(3 * forward + again, attention, tokens * _head(model, setup, gpu))


def _matrices(model: ModelConfig, setup: TrainingSetup, gpu: Gpu, tokens: float) -> float:
    work, tp = layer_work(model), setup.layout.parallel.tp
    width = work.width / tp
    speed = gpu.flops * MATRIX_EFFICIENCY * width / (width + HALF_WIDTH) * tokens / (tokens + HALF_TOKENS)
    speed *= {"fp8": FP8_GAIN, "fp32": 0.5}.get(setup.precision, 1.0)
    return work.matrices * tokens / tp / speed


def _attention(model: ModelConfig, setup: TrainingSetup, gpu: Gpu, tokens: float) -> float:
    parallel = setup.layout.parallel
    speed = min(gpu.flops * ATTENTION_EFFICIENCY, ATTENTION_FLOPS) / (1 + CONTEXT_COST * (parallel.cp - 1))
    seconds = layer_work(model).attention * setup.sequence / 2 * tokens / parallel.tp / speed
    return seconds if setup.flash_attention else seconds * PLAIN_ATTENTION


def _traffic(model: ModelConfig, setup: TrainingSetup, gpu: Gpu, tokens: float) -> float:
    parallel = setup.layout.parallel
    hidden = TRAFFIC_HIDDEN * model.hidden / (parallel.tp if parallel.sequence_parallel else 1)
    inner = TRAFFIC_INNER * (model.ffn + model.heads * model.head_dim) / parallel.tp
    seconds = tokens * (hidden + inner) / (gpu.memory_bandwidth * MEMORY_EFFICIENCY)
    return seconds * COMPILED_TRAFFIC if setup.compiled else seconds


def _head(model: ModelConfig, setup: TrainingSetup, gpu: Gpu) -> float:
    """Per token. The logits are written and read as 32-bit numbers, forward and backward."""
    share = model.vocab / setup.layout.parallel.tp
    operations = 6.0 * model.hidden * share / (gpu.flops * MATRIX_EFFICIENCY)
    return operations + 16.0 * share / (gpu.memory_bandwidth * MEMORY_EFFICIENCY)
