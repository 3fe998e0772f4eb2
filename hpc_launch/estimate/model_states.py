"""Memory of parameters, gradients and optimizer states on one GPU, by how the replicas share them.

Sources: ZeRO (arXiv 1910.02054, section 3.1); Megatron-LM d98e8a64, training/theoretical_memory_usage.py and
core/optimizer/distrib_optimizer.py; DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py; PyTorch 2.13,
distributed/fsdp (sharded parameters stay in 32 bits, and the optimizer works on them).
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from hpc_launch.estimate.training_setup import Sharding, Stage, TrainingSetup

_ADAM = 8.0
"""Bytes per parameter of two moments in 32 bits."""
_ADAM_8_BIT = 2 * (1 + 4 / 256)
"""Two moments of one byte, and a 32-bit scale for each block of 256 (bitsandbytes 0.45, optim/optimizer.py)."""
_MOMENTUM = 4.0
_SUB_GROUP = 10**9
"""Elements of a rank that stage 3 updates together (DeepSpeed 0.19.8, runtime/zero/config.py, sub_group_size)."""


class ModelStates(NamedTuple):
    """Bytes on one GPU."""

    parameters: int
    gradients: int
    optimizer: int


class _Bytes(Struct, frozen=True, kw_only=True):
    """Bytes per parameter, before the replicas share them."""

    parameter: float
    gradient: float
    step: float
    """Copies of a rank's gradients that only exist while the optimizer works on them."""
    master: float


def model_states(stage: Stage, setup: TrainingSetup) -> ModelStates:
    """Bytes of the states on one GPU of the stage. What is offloaded to the host does not count."""
    each = _bytes(setup)
    sizes = ((stage.dense, group_size(setup)), (stage.experts, group_size(setup, experts=True)))
    share_parameters, share_gradients, share_optimizer = _shares(setup)
    parameter = gradient = 0.0
    optimizer = 0.0
    for count, ranks in sizes:
        parameter += count * each.parameter / (ranks if share_parameters else 1)
        gradient += _gradients(count, each, setup.sharding, ranks if share_gradients else 1, ranks)
        optimizer += count * each.master / (ranks if share_optimizer else 1)
    optimizer += _moments(stage, setup, shared=share_optimizer)
    if setup.offload_optimizer:
        optimizer = 0.0
        gradient = gradient if setup.framework == "megatron" else 0.0
    return ModelStates(
        parameters=0 if setup.offload_parameters else round(parameter),
        gradients=round(gradient),
        optimizer=round(optimizer),
    )


def group_size(setup: TrainingSetup, *, experts: bool = False) -> int:
    """Ranks that share one copy of the states."""
    ranks = setup.expert_data_parallel if experts else setup.data_parallel
    return min(setup.shard_group, ranks) if setup.shard_group else ranks


def parameter_bytes(setup: TrainingSetup) -> int:
    """Bytes per parameter as stored, without its 32-bit copy in the optimizer."""
    return 4 if setup.framework == "pytorch" or setup.precision == "fp32" else 2


def shards_parameters(setup: TrainingSetup) -> bool:
    """Whether the replicas share the parameters, and gather each layer when they need it."""
    return setup.sharding in ("zero3", "fsdp1", "fsdp2", "hsdp")


def _bytes(setup: TrainingSetup) -> _Bytes:
    stored = parameter_bytes(setup)
    gradient: float = setup.gradient_bytes or (4 if setup.framework == "megatron" else stored)
    copies = 2.0 if setup.precision == "fp8" and setup.framework == "megatron" else 0.0
    # Transformer Engine keeps each weight in 8 bits as it is and transposed (2.11, pytorch/module/base.py).
    step = 6.0 if setup.framework == "deepspeed" and stored == 2 and setup.sharding != "none" else 0.0
    return _Bytes(parameter=stored + copies, gradient=gradient, step=step, master=4.0 if stored == 2 else 0.0)


def _gradients(count: int, each: _Bytes, sharding: Sharding, gradient_ranks: int, ranks: int) -> float:
    """Bytes of the gradients at their peak.

    DeepSpeed flattens a copy of the rank's gradients and converts that to 32 bits. Stage 1 has freed those of
    other ranks by then; stage 3 works on one sub-group at a time.
    """
    held = count * each.gradient
    if sharding == "zero1":
        return max(held, count * (each.gradient + each.step) / ranks)
    group = min(count / ranks, _SUB_GROUP) if sharding == "zero3" else count / ranks
    return held / gradient_ranks + group * each.step


def _shares(setup: TrainingSetup) -> tuple[bool, bool, bool]:
    """Whether the replicas share parameters, gradients and optimizer states."""
    if setup.sharding == "none":
        return False, False, False
    return shards_parameters(setup), shards_parameters(setup) or setup.sharding == "zero2", True


def _moments(stage: Stage, setup: TrainingSetup, *, shared: bool) -> float:
    """Bytes of what the optimizer remembers of past gradients.

    Muon keeps one moment of the matrices of layers; the rest is left to Adam (Keller Jordan's Muon; arXiv 2502.16982).
    """
    dense = group_size(setup) if shared else 1
    expert = group_size(setup, experts=True) if shared else 1
    matrix = {"adam": _ADAM, "adam8bit": _ADAM_8_BIT, "muon": _MOMENTUM, "sgd": _MOMENTUM}[setup.optimizer]
    other = _ADAM if setup.optimizer == "muon" else matrix
    return (stage.matrices * matrix + stage.ends * other) / dense + stage.experts * matrix / expert
