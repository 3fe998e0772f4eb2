"""What the output layer and the loss need on the last pipeline stage, in bytes on one GPU."""

from __future__ import annotations

from hpc_launch.estimate.activations import gathered, sequence_split
from hpc_launch.estimate.pipeline_stages import padded_vocabulary
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.model.model_config import ModelConfig

_MEGATRON_FUSED = 2
"""Bytes per logit. TransformerEngine 2.11, pytorch/triton/cross_entropy.py: the gradients replace the logits. 2.18
keeps them apart, in 32 bits, until it converts them."""
_MEGATRON = 6
"""Softmax in 32 bits, and logits or gradients in 16 (Megatron-LM, core/tensor_parallel/cross_entropy.py)."""
_TORCH_FUSED = 4
"""Logits and gradients in 16 bits: the compiler computes in 32 bits without storing it."""
_TORCH = 14
"""log_softmax's output, its gradient and the logits' gradient in 32 bits; and the 16-bit logits, which are freed too
early to leave room for another of these."""
_WHOLE = 20
"""Transformers and similar programs gather the logits and keep them, in 16 and in 32 bits, while the loss runs."""
_TORCH_SHARDED = 20
"""Four in 32 bits (PyTorch 2.6, distributed/tensor/parallel/loss.py adds and multiplies out of place), and one more
that the allocator could not reuse in the only published measurement (torchtitan's table 4)."""


def loss_peak(model: ModelConfig, setup: TrainingSetup) -> float:
    """Bytes when the loss begins its backward pass, in addition to what the layers keep."""
    parallel, vocabulary = setup.layout.parallel, padded_vocabulary(model, setup)
    divided = parallel.tp if setup.framework != "deepspeed" else 1
    logits = setup.tokens * vocabulary / divided * _bytes_per_logit(setup)
    weights = vocabulary // parallel.tp * model.hidden * (4 if setup.precision == "fp32" else 2)
    hidden = gathered(model, setup)
    norm = hidden / sequence_split(setup) * (2 if setup.fused_norm else 3)
    inputs = hidden if sequence_split(setup) > 1 else 0
    return logits + weights + norm + inputs + hidden + hidden / sequence_split(setup)


def _bytes_per_logit(setup: TrainingSetup) -> int:
    if setup.framework == "megatron":
        return _MEGATRON_FUSED if setup.fused_loss else _MEGATRON
    if setup.fused_loss:
        return _TORCH_FUSED
    if setup.framework == "deepspeed":
        return _WHOLE
    return _TORCH_SHARDED if setup.layout.parallel.tp > 1 else _TORCH
