"""Communication buckets, gathered weights and workspaces on one GPU, in bytes."""

from __future__ import annotations

from hpc_launch.estimate.model_states import group_size, parameter_bytes, shards_parameters
from hpc_launch.estimate.pipeline_stages import Stage
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.model.model_config import ModelConfig
from hpc_launch.model.parameters import parameters

_WORKSPACE = 64 * 2**20
"""cuBLAS's workspaces: 32 MiB of PyTorch's and 32 MiB of TransformerEngine's on Hopper and later (PyTorch 2.13,
ATen/cuda/CUDABlas.cpp; TransformerEngine 2.11, pytorch/module/base.py)."""
_GROUPED_WORKSPACE = 4 * 32 * 2**20
"""TransformerEngine runs the experts' matrices on four streams (pytorch/module/base.py)."""
_DEEPSPEED_BUCKET = 500_000_000
"""Elements: `reduce_bucket_size` (DeepSpeed 0.19.8, runtime/zero/config.py)."""
_DEEPSPEED_PREFETCH = 50_000_000
"""Elements: `stage3_prefetch_bucket_size`."""


def buffers(model: ModelConfig, setup: TrainingSetup, stage: Stage) -> float:
    """Bytes that the program holds beside states and activations, at its peak."""
    total = float(_WORKSPACE)
    if setup.framework == "megatron":
        total += _placeholders(model, setup, stage)
    if setup.framework == "deepspeed":
        total += _deepspeed(setup, stage, largest_layer(model, setup, stage))
    elif shards_parameters(setup):
        total += _fully_sharded(model, setup, stage)
    elif setup.framework == "pytorch" and setup.data_parallel > 1:
        # DistributedDataParallel copies gradients into its buckets unless gradient_as_bucket_view is set.
        total += stage.total * parameter_bytes(setup)
    if setup.framework == "pytorch" and setup.precision != "fp32" and not shards_parameters(setup):
        # autocast keeps each weight's 16-bit copy for the backward pass (PyTorch 2.13, amp/autocast_mode.py).
        total += stage.total * 2
    return total


def largest_layer(model: ModelConfig, setup: TrainingSetup, stage: Stage) -> float:
    """Parameters of the stage's largest layer on one GPU, if its replicas do not share them."""
    parallel, counts = setup.layout.parallel, parameters(model)
    return max(
        (
            layer.outside_experts / parallel.tp + layer.experts / (parallel.ep * setup.expert_tensor_parallel)
            for layer in (counts.layers[index] for index in stage.layers)
        ),
        default=0.0,
    )


def _placeholders(model: ModelConfig, setup: TrainingSetup, stage: Stage) -> float:
    """One unused gradient in 16 bits for each shape of weight.

    TransformerEngine 2.11, pytorch/module/base.py, get_dummy_wgrad: it has added the real gradient to Megatron's.
    """
    tp, element = setup.layout.parallel.tp, parameter_bytes(setup)
    counts = parameters(model)
    with_experts = [model.has_experts(layer) for layer in stage.layers]
    total = 0.0
    if stage.layers:
        first = counts.layers[stage.layers[0]]
        total += first.attention / tp + first.latent
    if not all(with_experts):
        dense = counts.layers[stage.layers[with_experts.index(False)]]
        total += dense.mlp / tp
    if any(with_experts) and model.experts is not None:
        layer = counts.layers[stage.layers[with_experts.index(True)]]
        total += layer.shared_experts / tp + layer.experts / model.experts.count / setup.expert_tensor_parallel
        return total * element + _GROUPED_WORKSPACE
    return total * element


def _fully_sharded(model: ModelConfig, setup: TrainingSetup, stage: Stage) -> float:
    """Weights that FSDP has gathered in 16 bits.

    Embedding and output layer stay gathered from the forward to the backward pass; the buffer of their all-gather is
    in another stream's part of the allocator. Of the layers, one is in use and one is being fetched. With pipeline
    stages, all stay gathered, and whole gradients in 32 bits add up until the last micro batch, which copies those of
    a layer to share them (PyTorch 2.6, distributed/fsdp/_fully_shard; torchtitan 9dec370,
    parallelisms/parallelize_llama.py).
    """
    element = 4 if setup.precision == "fp32" else 2
    if group_size(setup) == 1:
        return 0.0
    layer = largest_layer(model, setup, stage)
    if setup.layout.parallel.pp > 1:
        return stage.total * (element + 4) + layer * (2 * element + 4)
    return 2 * element * (stage.ends + layer)


def _deepspeed(setup: TrainingSetup, stage: Stage, layer: float) -> float:
    element = 4 if setup.precision == "fp32" else 2
    bucket = min(setup.bucket_elements or _DEEPSPEED_BUCKET, stage.total) * element
    if setup.sharding == "zero3":
        fetched = layer + min(_DEEPSPEED_PREFETCH, stage.total)
        return bucket + element * (fetched + layer)
    return bucket if setup.sharding == "zero2" else 0.0
