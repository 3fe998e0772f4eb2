"""Changes to a training that would lower its memory per GPU, and by how much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.estimate.memory import memory
from hpc_launch.estimate.training_setup import Sharding, TrainingSetup
from hpc_launch.layouts.parallel_layout import UNEVEN_FIELDS, split_for, virtual_sizes
from hpc_launch.model.model_config import ModelConfig

_NODE = 8
"""Tensor parallelism beyond one node is not proposed."""
_NEXT_SHARDING: dict[tuple[str, Sharding], Sharding] = {
    ("megatron", "none"): "distributed_optimizer",
    ("deepspeed", "none"): "zero1",
    ("deepspeed", "zero1"): "zero2",
    ("deepspeed", "zero2"): "zero3",
    ("pytorch", "none"): "fsdp2",
}


class Reduction(Struct, frozen=True, kw_only=True):
    """One change, and the bytes per GPU that it saves."""

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
        for change, changed in _changes(model, setup)
    ]
    return sorted((change for change in found if change.saved > 0), key=lambda change: (-change.saved, change.change))


def _changes(model: ModelConfig, setup: TrainingSetup) -> Iterator[tuple[str, TrainingSetup]]:
    sharding = _NEXT_SHARDING.get((setup.framework, setup.sharding))
    if sharding is not None and setup.data_parallel > 1:
        yield f"share the states: {sharding.replace('_', ' ')}", replace(setup, sharding=sharding)
    if setup.recompute != "full":
        yield "recompute all activations", replace(setup, recompute="full")
    if setup.recompute == "none":
        yield "recompute selected activations", replace(setup, recompute="selective")
    if not setup.flash_attention:
        yield "use FlashAttention", replace(setup, flash_attention=True)
    if not setup.fused_loss:
        yield "use a fused cross entropy", replace(setup, fused_loss=True)
    if not setup.fused_norm:
        yield "use fused norms", replace(setup, fused_norm=True)
    if setup.optimizer == "adam":
        yield "use an 8-bit optimizer", replace(setup, optimizer="adam8bit")
    if not setup.offload_optimizer:
        yield "keep the optimizer's states in host memory", replace(setup, offload_optimizer=True)
    yield from _layouts(model, setup)


def _layouts(model: ModelConfig, setup: TrainingSetup) -> Iterator[tuple[str, TrainingSetup]]:
    """Changes to `parallel:`. The global batch stays as it is."""
    parallel, dp = setup.layout.parallel, setup.layout.dp
    batch = setup.layout.global_batch

    def changed(**sizes: Any) -> TrainingSetup:
        return replace(setup, layout=replace(setup.layout, parallel=replace(parallel, global_batch=batch, **sizes)))

    if parallel.tp > 1 and not parallel.sequence_parallel:
        yield "use sequence parallelism", changed(sequence_parallel=True)
    if parallel.micro_batch > 1 and parallel.micro_batch % 2 == 0:
        yield f"halve the micro batch to {parallel.micro_batch // 2}", changed(micro_batch=parallel.micro_batch // 2)
    if dp > 1 and dp % 2 == 0:
        if 2 * parallel.tp <= _NODE and model.query_groups % (2 * parallel.tp) == 0:
            yield f"double TP to {2 * parallel.tp}", changed(tp=2 * parallel.tp, sequence_parallel=True)
        stages = _stages(model, setup, 2 * parallel.pp)
        if stages is not None:
            yield f"double PP to {2 * parallel.pp}", changed(**stages)
        if setup.sequence % (4 * parallel.cp) == 0:
            yield f"double CP to {2 * parallel.cp}", changed(cp=2 * parallel.cp)
    if model.experts is not None and model.experts.count % (2 * parallel.ep) == 0:
        more = 2 * parallel.ep * setup.expert_tensor_parallel * parallel.pp
        if setup.layout.world_size % more == 0:
            yield f"double EP to {2 * parallel.ep}", changed(ep=2 * parallel.ep)


def _stages(model: ModelConfig, setup: TrainingSetup, pp: int) -> dict[str, Any] | None:
    """The fields of `parallel:` for so many pipeline stages; None if the layers do not suffice or cannot be divided."""
    virtual = setup.layout.parallel.vpp or 1
    if setup.framework != "megatron":
        return {"pp": pp} if model.layers >= pp * virtual else None
    split = split_for(model.layers, pp)
    if split is None or (virtual > 1 and virtual not in virtual_sizes(model.layers, split)):
        return None
    return {"pp": pp} | {name: getattr(split, name) for name in UNEVEN_FIELDS}
