"""How a model is trained, as far as memory and time depend on it, and what each of its pipeline stages holds."""

from __future__ import annotations

from itertools import accumulate
from typing import Literal

from msgspec import Struct

from hpc_launch.layouts.parallel_layout import ParallelLayout, even_parts, megatron_parts
from hpc_launch.model.model_config import ModelConfig, parameters

Sharding = Literal["none", "zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp", "distributed_optimizer"]
"""What the data-parallel replicas share: nothing, or as ZeRO, PyTorch's FSDP or Megatron do."""
Optimizer = Literal["adam", "adam8bit", "muon", "sgd"]
Recompute = Literal["none", "selective", "full"]
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
    optimizer: Optimizer = "adam"
    recompute: Recompute = "none"
    flash_attention: bool = True
    fused_norm: bool = True
    """Whether norms are one kernel that keeps its input, and not several operations that keep their results."""
    dropout: bool = False
    """Whether attention and residual connections have dropout, whose masks are kept."""
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


class Stage(Struct, frozen=True, kw_only=True):
    """One pipeline stage, with the parameters of one of its GPUs."""

    index: int
    layers: tuple[int, ...]
    """Indices of its transformer layers, over all virtual stages."""
    first: bool
    last: bool
    matrices: int
    """Weights of layers outside experts."""
    experts: int
    ends: int
    """Embedding, output layer and norms; of layers that predict later tokens, what is outside their experts."""

    @property
    def dense(self) -> int:
        """Parameters that data parallelism replicates, unlike experts."""
        return self.matrices + self.ends

    @property
    def total(self) -> int:
        """All parameters of the GPU."""
        return self.dense + self.experts


def stages(model: ModelConfig, setup: TrainingSetup) -> tuple[Stage, ...]:
    """All pipeline stages. A tied output layer is stored again if the last stage is not the first."""
    counts, parallel = parameters(model), setup.layout.parallel
    vocabulary = padded_vocabulary(model, setup) / model.vocab
    found = []
    for index, layers in enumerate(_layers(model.layers, setup)):
        first, last = index == 0, index == parallel.pp - 1
        chosen = [counts.layers[layer] for layer in layers]
        divided = sum(layer.attention + layer.mlp + layer.shared_experts for layer in chosen)
        experts = sum(layer.experts for layer in chosen)
        ends = counts.embedding * vocabulary if first else 0.0
        if last:
            predicting = model.next_token_layers * counts.layers[-1].experts if counts.next_token else 0
            experts += predicting
            ends += (counts.output or (0 if first else counts.embedding)) * vocabulary + counts.next_token - predicting
        norms = sum(layer.norms for layer in chosen) + (counts.final_norm if last else 0)
        found.append(
            Stage(
                index=index,
                layers=layers,
                first=first,
                last=last,
                matrices=divided // parallel.tp + sum(layer.latent + layer.router for layer in chosen),
                experts=experts // (parallel.ep * setup.expert_tensor_parallel),
                ends=int(ends) // parallel.tp + norms,
            )
        )
    return tuple(found)


def padded_vocabulary(model: ModelConfig, setup: TrainingSetup) -> int:
    """Rows of the embedding. Megatron rounds up to a multiple of 128 × TP (training/arguments.py, vocab size)."""
    unit = 128 * setup.layout.parallel.tp if setup.framework == "megatron" else 1
    return -(-model.vocab // unit) * unit


def layers_in_flight(stage: Stage, setup: TrainingSetup) -> float:
    """Layers whose activations the stage keeps at its peak, as a multiple of its layers.

    1F1B: a stage runs ahead by the stages behind it. Virtual stages are interleaved: Megatron-LM d98e8a64,
    core/pipeline_parallel/schedules.py (num_warmup_microbatches).
    """
    parallel, steps = setup.layout.parallel, max(setup.layout.microbatches, 1)
    behind = parallel.pp - stage.index - 1
    if parallel.vpp is None:
        return min(behind + 1, steps)
    chunks = 2 * behind + (parallel.vpp - 1) * parallel.pp + 1
    return min(chunks, steps * parallel.vpp) / parallel.vpp


def _parts(layers: int, setup: TrainingSetup) -> tuple[int, ...]:
    """Layers of each virtual stage, in the order of the layers. A Megatron layout that breaks the rules is even."""
    parallel = setup.layout.parallel
    parts = megatron_parts(layers, parallel) if setup.framework == "megatron" else None
    return parts or even_parts(layers, parallel.pp * (parallel.vpp or 1))


def stage_layers(layers: int, setup: TrainingSetup) -> tuple[int, ...]:
    """Layers of each pipeline stage, over all its virtual stages."""
    parts, pp = _parts(layers, setup), setup.layout.parallel.pp
    return tuple(sum(parts[stage::pp]) for stage in range(pp))


def _layers(count: int, setup: TrainingSetup) -> list[tuple[int, ...]]:
    """Indices of the layers of each stage."""
    sizes, stages = _parts(count, setup), setup.layout.parallel.pp
    starts = [0, *accumulate(sizes)]
    return [
        tuple(
            layer
            for part in range(stage, len(sizes), stages)
            for layer in range(starts[part], starts[part] + sizes[part])
        )
        for stage in range(stages)
    ]
