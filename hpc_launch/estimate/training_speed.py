"""How fast a training was: tokens per second, and the share of the GPUs' peak that the model needs (MFU). Pure."""

from __future__ import annotations

from msgspec import Struct

from hpc_launch.estimate.gpu import Gpu, layer_work
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.model.model_config import ModelConfig


class TrainingSpeed(Struct, frozen=True, kw_only=True):
    """The measured speed of a training."""

    tokens_s: float
    """Tokens per second, over all GPUs."""
    mfu: float
    """Model FLOPs utilization, from 0 to 1, relative to the dense bf16 peak of the GPUs."""


def training_flops(model: ModelConfig, sequence: int) -> float:
    """Operations per token, forward and backward, as arXiv 2204.02311, appendix B, counts them: nothing that is
    computed again. Of the attention, a causal mask leaves half."""
    work = layer_work(model)
    layers = model.layers * (work.matrices + work.attention * sequence / 2)
    return 3 * (layers + 2.0 * model.hidden * model.vocab)


def training_speed(model: ModelConfig, setup: TrainingSetup, gpu: Gpu, step_s: float) -> TrainingSpeed:
    """The speed of a training with one process per GPU, by the measured seconds per step."""
    tokens_s = setup.layout.global_batch * setup.sequence / step_s
    peak = gpu.flops * setup.layout.world_size
    return TrainingSpeed(tokens_s=tokens_s, mfu=tokens_s * training_flops(model, setup.sequence) / peak)
