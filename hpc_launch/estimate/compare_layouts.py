"""List the layouts of a training that meet every rule and fit into the GPUs' memory, the fastest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.findings import errors
from hpc_launch.estimate.gpu import Gpu
from hpc_launch.estimate.memory import MemoryEstimate, memory
from hpc_launch.estimate.step_time import step_time
from hpc_launch.estimate.training_setup import Recompute, Sharding, TrainingSetup, stage_layers
from hpc_launch.job.launcher import Parallel
from hpc_launch.layouts.parallel_layout import ParallelLayout, split_for, virtual_sizes
from hpc_launch.layouts.parallel_rules import check
from hpc_launch.model.model_config import ModelConfig

LEAST_PART = 8192
"""Tokens of a sequence that context parallelism leaves to a GPU at least: it is for sequences that are long."""
SIMPLE_ENOUGH = 1.05
"""Step time of a layout relative to the fastest, up to which the simpler of two is recommended."""
MICRO_BATCHES = (1, 2, 4, 8)
_SHARDINGS: tuple[Sharding, ...] = (
    "none", "distributed_optimizer", "zero1", "zero2", "fsdp1", "fsdp2", "zero3", "hsdp",
)  # fmt: skip
"""From simple to complex."""


class Choices(Struct, frozen=True, kw_only=True):
    """What a comparison may change. By default whatever the framework can do; offloading stays."""

    model_parallel: bool = True
    """Whether TP, PP, VPP, CP and EP may change."""
    shardings: tuple[Sharding, ...] | None = None
    """None: all that the framework has."""
    recompute: tuple[Recompute, ...] = ("none", "selective", "full")
    """From the least to the most."""


EVERYTHING = Choices()


class ComparedLayout(Struct, frozen=True, kw_only=True):
    """A layout with its estimates."""

    setup: TrainingSetup
    memory: MemoryEstimate
    step_s: float
    """Seconds of a step."""
    stage_layers: tuple[int, ...]
    """Layers of each pipeline stage."""


class Comparison(Struct, frozen=True, kw_only=True):
    """All layouts that fit, the fastest first."""

    layouts: tuple[ComparedLayout, ...]
    allowed: int
    """Layouts that meet every rule, whether they fit or not."""
    least_memory: int | None = None
    """Bytes that the least demanding of these needs, if none fits."""


def compare_layouts(model: ModelConfig, like: TrainingSetup, gpu: Gpu, choices: Choices = EVERYTHING) -> Comparison:
    """Compare the layouts of a training like this one: as many GPUs, the same batch, sequence, framework and precision.

    It varies the micro batch, and what `choices` allows of TP, PP, VPP, CP, EP, sharding and recomputation.
    Of the degrees of recomputation, only the least that fits is listed: more is only slower. A layout fits if the upper
    end of its memory estimate does. The step times rank the layouts; they are not a prediction of seconds.
    """
    allowed = list(allowed_setups(model, like, gpu.per_node, choices))
    layouts = rank(model, allowed, gpu, choices.recompute)
    needs = [] if layouts else [memory(model, setup).high for setup in allowed]
    return Comparison(layouts=layouts, allowed=len(allowed), least_memory=min(needs, default=None))


def recommended(found: Comparison) -> ComparedLayout | None:
    """The simplest layout that is about as fast as the fastest. None if none fits."""
    if not found.layouts:
        return None
    most = found.layouts[0].step_s * SIMPLE_ENOUGH
    return min(
        (layout for layout in found.layouts if layout.step_s <= most),
        key=lambda layout: (_complexity(layout.setup), layout.step_s),
    )


def allowed_setups(
    model: ModelConfig, like: TrainingSetup, per_node: int, choices: Choices = EVERYTHING
) -> Iterator[TrainingSetup]:
    """Setups that break no rule, all with the most recomputation, which needs the least memory.

    They cause no warning either, unless the model parallelism that causes it cannot change.
    """
    shape = replace(model.shape, seq_length=like.sequence)
    world = like.layout.world_size
    for parallel in _parallels(model, like, per_node, choices):
        layout = ParallelLayout(parallel, world)
        found = check(layout, shape, lambda _: None, gpus_per_node=per_node, even=like.framework == "megatron")
        if errors(found) or (found and choices.model_parallel):
            continue
        for sharding in _shardings(like, layout, per_node):
            if choices.shardings is not None and sharding not in choices.shardings:
                continue
            if like.offload_optimizer and not _can_offload(sharding, weights=like.offload_parameters):
                continue
            if not like.offload_optimizer and sharding != "none" and layout.dp * parallel.cp == 1:
                continue  # nobody to share with
            group = per_node if sharding == "hsdp" else None
            most = choices.recompute[-1]
            yield replace(like, layout=layout, sharding=sharding, shard_group=group, recompute=most)


def rank(
    model: ModelConfig,
    setups: Iterable[TrainingSetup],
    gpu: Gpu,
    recompute: tuple[Recompute, ...] = EVERYTHING.recompute,
) -> tuple[ComparedLayout, ...]:
    """Those that fit, the fastest first. The order of the setups does not matter."""
    found = []
    smallest: dict[TrainingSetup, bool] = {}
    for setup in setups:
        # The least micro batch without virtual stages needs the least memory: if it does not fit, no other does.
        plain = replace(setup.layout.parallel, micro_batch=1, vpp=None)
        least = replace(setup, layout=ParallelLayout(plain, setup.layout.world_size))
        if least not in smallest:
            smallest[least] = memory(model, least).high <= gpu.memory
        if smallest[least] and (fitting := _least_recomputation(model, setup, gpu, recompute)) is not None:
            found.append(fitting)
    return tuple(sorted(found, key=lambda layout: (layout.step_s, str(layout.setup))))


def _least_recomputation(
    model: ModelConfig, setup: TrainingSetup, gpu: Gpu, degrees: tuple[Recompute, ...]
) -> ComparedLayout | None:
    for recompute in degrees:
        chosen = replace(setup, recompute=recompute)
        need = memory(model, chosen)
        if need.high <= gpu.memory:
            layers = stage_layers(model.layers, chosen)
            return ComparedLayout(setup=chosen, memory=need, step_s=step_time(model, chosen, gpu), stage_layers=layers)
    return None


def _parallels(model: ModelConfig, like: TrainingSetup, per_node: int, choices: Choices) -> Iterator[Parallel]:
    """Candidates that divide the GPUs, the layers and the batch; the rules decide about the rest."""
    world, batch = like.layout.world_size, like.layout.global_batch
    if not choices.model_parallel:
        for micro in MICRO_BATCHES:
            if batch % (micro * max(like.layout.dp, 1)) == 0:
                yield replace(like.layout.parallel, micro_batch=micro, global_batch=batch)
        return
    megatron, experts = like.framework == "megatron", model.experts.count if model.experts else 1
    only_data = like.framework == "deepspeed"
    tensor = [1] if only_data else [size for size in _divisors(model.heads) if size <= per_node]
    stages = [1] if only_data else [size for size in range(1, model.layers + 1) if world % size == 0]
    parts = [1] if only_data else [size for size in _divisors(world) if size == 1 or like.sequence >= size * LEAST_PART]
    for tp, pp, cp in product(tensor, stages, parts):
        if world % (tp * pp * cp):
            continue
        dp = world // (tp * pp * cp)
        split = split_for(model.layers, pp) if megatron else Parallel(pp=pp)
        if split is None:
            continue
        virtual = [None, *virtual_sizes(model.layers, split)] if pp > 1 and megatron else [None]
        for ep, vpp, micro in product(_divisors(experts) if megatron else [1], virtual, MICRO_BATCHES):
            if batch % (micro * dp) == 0 and (world // pp) % (tp * ep) == 0:
                yield replace(
                    split,
                    tp=tp,
                    cp=cp,
                    ep=ep,
                    vpp=vpp,
                    sequence_parallel=tp > 1,
                    distributed_optimizer=megatron and dp * cp > 1,
                    overlap=True,
                    micro_batch=micro,
                    global_batch=batch,
                )


def _shardings(like: TrainingSetup, layout: ParallelLayout, per_node: int) -> tuple[Sharding, ...]:
    if like.framework == "deepspeed":
        return ("none", "zero1", "zero2", "zero3")
    if layout.dp * layout.parallel.cp == 1:
        return ("none",)
    if like.framework == "megatron":
        return ("distributed_optimizer",)
    full: Sharding = "fsdp1" if like.sharding == "fsdp1" else "fsdp2"
    if layout.model_parallel > 1:
        return (full,)
    nodes = layout.dp > per_node and layout.dp % per_node == 0
    return ("none", full, "hsdp") if nodes else ("none", full)


def _can_offload(sharding: Sharding, *, weights: bool) -> bool:
    """ZeRO offloads what it shards; FSDP everything together."""
    return sharding == "zero3" or sharding.startswith(("fsdp", "hsdp")) or (sharding.startswith("zero") and not weights)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _complexity(setup: TrainingSetup) -> tuple[int, int]:
    """Kinds of model parallelism, and what the replicas share."""
    parallel = setup.layout.parallel
    kinds = sum(size > 1 for size in (parallel.tp, parallel.pp, parallel.cp, parallel.ep, parallel.vpp or 1))
    return kinds, _SHARDINGS.index(setup.sharding)
