"""Memory that a training needs on each GPU, and changes that would lower it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.estimate.model_states import (
    at_work,
    gathered,
    group_size,
    kept,
    model_states,
    parameter_bytes,
    sent_and_received,
    sequence_split,
    shards_parameters,
)
from hpc_launch.estimate.training_setup import (
    Sharding,
    Stage,
    TrainingSetup,
    layers_in_flight,
    padded_vocabulary,
    stages,
)
from hpc_launch.model.model_config import ModelConfig, parameters


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


_MIB = 2**20
_CUDA_CONTEXT = 500 * _MIB
"""CUDA's context with PyTorch's kernels, as nvidia-smi shows it on A100 and later."""
_NCCL_GROUP = 150 * _MIB
"""Buffers of the channels of one communicator (NCCL 2.30: NCCL_BUFFSIZE of 4 MiB per channel and direction)."""
_SLACK = 0.05
"""Reserved above allocated memory: 2 to 9 %, 5 % in the median of SimuMax's runs of Megatron-LM (docs/b200, v1.2)."""
_MOST_SLACK = 0.1
_SLACK_EXPANDABLE = 0.01
"""With expandable segments. None of the published runs reports both sizes."""
_LESS = 0.05
"""How far below the estimate the need may be, even if the allocator can use everything."""
_MORE = {"megatron": 0.05, "pytorch": 0.25, "deepspeed": 0.35}
"""How far above the estimate what is not a state may be. Megatron's layers are known. Other programs also keep copies:
with 0.33, none of 953 labelled runs that ended out of memory is said to fit (tests/estimate/data), with 0.3 one is."""
_UNEVEN_EXPERTS = 0.25
"""The same for experts: they do not all get the same number of tokens."""


def memory(model: ModelConfig, setup: TrainingSetup) -> MemoryEstimate:
    """Memory on a GPU of the pipeline stage that needs the most."""
    return max(memory_by_stage(model, setup), key=lambda estimate: estimate.total)


def memory_by_stage(model: ModelConfig, setup: TrainingSetup) -> tuple[MemoryEstimate, ...]:
    """Memory on a GPU of each pipeline stage."""
    return tuple(_stage(model, setup, stage) for stage in stages(model, setup))


def _stage(model: ModelConfig, setup: TrainingSetup, stage: Stage) -> MemoryEstimate:
    states = model_states(stage, setup)
    saved = _kept(model, setup, stage) * layers_in_flight(stage, setup)
    working = at_work(model, setup, stage.layers[-1]) if stage.layers else 0.0
    loss = loss_peak(model, setup) if stage.last else 0.0
    # The loss and the layers run backward one after the other; the larger of the two is in the peak.
    activations = saved + (working if working > loss else 0)
    logits = loss if loss >= working else 0.0
    held = buffers(model, setup, stage) + sent_and_received(model, setup)
    context = _context(setup)
    moving = activations + logits + held
    slack = (_SLACK_EXPANDABLE if setup.expandable_segments else _SLACK) * (sum(states) + moving)
    most = slack if setup.expandable_segments else _MOST_SLACK * (sum(states) + moving)
    needed = sum(states) + moving + context
    more = _MORE[setup.framework] + (_UNEVEN_EXPERTS if model.experts is not None else 0)
    return MemoryEstimate(
        parameters=states.parameters,
        gradients=states.gradients,
        optimizer=states.optimizer,
        activations=round(activations),
        logits=round(logits),
        buffers=round(held),
        context=context,
        fragmentation=round(slack),
        low=round(needed * (1 - _LESS)),
        high=round(needed + most + more * moving),
        stage=stage.index,
    )


def _kept(model: ModelConfig, setup: TrainingSetup, stage: Stage) -> float:
    """Of all layers of the stage, which are of two kinds at most."""
    with_experts = sum(model.has_experts(layer) for layer in stage.layers)
    total = 0.0
    for count, kind in ((with_experts, True), (len(stage.layers) - with_experts, False)):
        if count:
            layer = next(layer for layer in stage.layers if model.has_experts(layer) == kind)
            total += count * kept(model, setup, layer)
    return total


def _context(setup: TrainingSetup) -> int:
    parallel = setup.layout.parallel
    sizes = (setup.data_parallel, parallel.tp, parallel.pp, parallel.cp, parallel.ep)
    return _CUDA_CONTEXT + _NCCL_GROUP * sum(size > 1 for size in sizes)


_NEXT_SHARDING: dict[tuple[str, Sharding], Sharding] = {
    ("megatron", "none"): "distributed_optimizer",
    ("deepspeed", "none"): "zero1",
    ("deepspeed", "zero1"): "zero2",
    ("deepspeed", "zero2"): "zero3",
    ("pytorch", "none"): "fsdp2",
}


class Reduction(Struct, frozen=True, kw_only=True):
    """A change to a training, and the bytes per GPU that it saves."""

    change: str
    """What to do, in the imperative."""
    saved: int
    setup: TrainingSetup
    """The training with the change."""


def reductions(model: ModelConfig, setup: TrainingSetup) -> list[Reduction]:
    """Single changes that lower the memory of the most loaded GPU, the largest saving first."""
    now = memory(model, setup).total
    found = [
        Reduction(change=change, saved=now - memory(model, changed).total, setup=changed)
        for change, changed in _changes(setup)
    ]
    return sorted((change for change in found if change.saved > 0), key=lambda change: (-change.saved, change.change))


def _changes(setup: TrainingSetup) -> Iterator[tuple[str, TrainingSetup]]:
    """Other sizes of `parallel:` are left to `plan --search`."""
    sharding = _NEXT_SHARDING.get((setup.framework, setup.sharding))
    if sharding is not None and setup.data_parallel > 1:
        yield f"share the states: {sharding.replace('_', ' ')}", replace(setup, sharding=sharding)
    if setup.recompute != "full":
        yield "recompute all activations", replace(setup, recompute="full")
    if setup.recompute == "none":
        yield "recompute selected activations", replace(setup, recompute="selective")
    if not setup.fused_loss:
        yield "use a fused cross entropy", replace(setup, fused_loss=True)
    if setup.optimizer == "adam":
        yield "use an 8-bit optimizer", replace(setup, optimizer="adam8bit")
    if not setup.offload_optimizer:
        yield "keep the optimizer's states in host memory", replace(setup, offload_optimizer=True)
    parallel, batch = setup.layout.parallel, setup.layout.global_batch
    if parallel.tp > 1 and not parallel.sequence_parallel:
        changed = replace(parallel, sequence_parallel=True)
        yield "use sequence parallelism", replace(setup, layout=replace(setup.layout, parallel=changed))
    if parallel.micro_batch % 2 == 0:
        changed = replace(parallel, micro_batch=parallel.micro_batch // 2, global_batch=batch)
        layout = replace(setup.layout, parallel=changed)
        yield f"halve the micro batch to {changed.micro_batch}", replace(setup, layout=layout)
