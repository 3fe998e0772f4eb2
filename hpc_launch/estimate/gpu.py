"""What a GPU and its links can do, and how long a micro batch's computation takes on it: one layer, the output layer.

Constants without a source of their own were fitted as those of `step_time`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from hpc_launch.base.installed import read_shipped
from hpc_launch.estimate.training_setup import TrainingSetup
from hpc_launch.model.model_config import ModelConfig, parameters
from hpc_launch.sites.queues import Fabric, NodeClass, overlay_fabric


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU and the links of its node. Bandwidths are per GPU, in one direction, in bytes per second."""

    name: str
    memory: int
    """Bytes."""
    flops: float
    """Dense matrix operations per second in bf16."""
    memory_bandwidth: float
    node_bandwidth: float
    """To another GPU of the node."""
    network_bandwidth: float
    """To a GPU of another node."""
    per_node: int


FILE = Path(__file__).with_name("gpus.yaml")
_MEBIBYTE = 1024 * 1024
_GIGA = 1e9
_MEMORY_TOLERANCE = 0.08
"""Profiles give the nominal size: 48 GB of an L40S are 45 GiB for a program."""


class GpuFigures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of `gpus.yaml`."""

    name: str
    words: list[str]
    without: list[str] = []
    memory: int
    tflops: float
    memory_bandwidth: float
    node: float
    network: dict[str, float]
    assumed: str = ""
    """The form that a name without one means."""
    source: str


class Unknown(Struct, frozen=True):
    """Why something is not known, and what would help."""

    reason: str
    hint: str


def published_gpus() -> list[GpuFigures]:
    """All rows of `gpus.yaml`."""
    rows: list[GpuFigures] = read_shipped(FILE, list[GpuFigures])
    return rows


def gpu_of_node_class(name: str, node: NodeClass, site_fabric: Fabric) -> Gpu | Unknown:
    """The GPU of a site profile's node class: by `gpu_type`, else by the class's name, else by its description."""
    fabric, _ = overlay_fabric(site_fabric, node.fabric)
    if not node.gpus:
        return Unknown(reason=f"nodes of class {name} have no GPUs", hint="choose a queue with GPUs")
    names = [node.gpu_type or "", name, node.about]
    return find_gpu(names, memory=node.gpu_memory, per_node=node.gpus, fabric=fabric.kind)


def find_gpu(
    names: Sequence[str], *, memory: int | None = None, per_node: int, fabric: str | None = None
) -> Gpu | Unknown:
    """The GPU that the first telling name means. `memory` in MiB decides between its sizes.

    Form words (`pcie`, `nvl`) count wherever they occur. Two GPUs in one name, or a size that is not for sale, are
    unknown: figures of a similar GPU would be a guess.
    """
    everything = " ".join(names).lower()
    for name in names:
        rows = [row for row in published_gpus() if _named(row, name.lower(), everything)]
        if rows:
            found = _of_size(rows, memory or _size_in(name))
            return found if isinstance(found, Unknown) else _figures(found, memory, per_node, fabric)
    given = next((name for name in names if name), "")
    return Unknown(
        reason=f"no figures for GPU {given}" if given else "the GPU's type is unknown",
        hint="set `gpu_type` and `gpu_memory` of the node class, such as h100 and 80G",
    )


def _of_size(rows: list[GpuFigures], memory: int | None) -> GpuFigures | Unknown:
    families = sorted({row.words[0] for row in rows})
    if len(families) > 1:
        return Unknown(reason="the name fits " + " and ".join(families), hint="set `gpu_type` of the node class")
    fitting = [row for row in rows if memory is None or abs(row.memory / memory - 1) <= _MEMORY_TOLERANCE]
    if len(fitting) != 1:
        sizes = ", ".join(row.name for row in rows)
        if memory is None:
            return Unknown(reason=f"it may be any of: {sizes}", hint="set `gpu_memory` of the node class")
        reason = f"no figures for a GPU of {memory / 1024:.0f} GiB among: {sizes}"
        return Unknown(reason=reason, hint="check `gpu_memory`")
    return fitting[0]


def _figures(row: GpuFigures, memory: int | None, per_node: int, fabric: str | None) -> Gpu:
    return Gpu(
        name=row.name,
        memory=min(row.memory, memory or row.memory) * _MEBIBYTE,
        flops=row.tflops * 1e12,
        memory_bandwidth=row.memory_bandwidth * _GIGA,
        node_bandwidth=row.node * _GIGA,
        network_bandwidth=row.network.get(fabric or "", row.network["default"]) * _GIGA,
        per_node=per_node,
    )


def _named(row: GpuFigures, name: str, everything: str) -> bool:
    model, *form = row.words
    return (
        re.search(rf"(?<![a-z0-9]){re.escape(model)}(?![0-9])", name) is not None
        and all(word in everything for word in form)
        and not any(re.search(rf"(?<![a-z]){word}(?![a-z])", everything) for word in row.without)
    )


def _size_in(name: str) -> int | None:
    """Memory in MiB that a name such as `NVIDIA A100-SXM4-40GB` or `h100-80` ends with."""
    match = re.search(r"[-_ ](\d{2,3})\s?(?:g|gb)?(?:$|[-_ ])", name.lower())
    return int(match[1]) * 1024 if match else None


BYTES = 2
"""Of an activation or a weight in bf16."""


class LayerWork(Struct, frozen=True, kw_only=True):
    """The forward pass of an average layer, per token. The backward pass takes twice the operations."""

    matrices: float
    """Operations of the weight matrices that this token meets: two for each weight."""
    attention: float
    """Operations of the attention itself, per token of context; half of it with a causal mask."""
    width: float
    """Mean width of the matrices' inner dimension, before tensor parallelism divides it."""
    dense_weights: float
    """Weights outside experts."""
    expert_weights: float
    key_value_width: float
    """Keys and values of a token, in elements."""
    routed: float
    """Copies of a token that go to experts."""


@lru_cache(maxsize=64)
def layer_work(model: ModelConfig) -> LayerWork:
    """The average over the model's layers."""
    counts = parameters(model)
    dense = sum(layer.outside_experts for layer in counts.layers) / model.layers
    experts = counts.experts / model.layers
    mixture, latent = model.experts, model.latent
    routed = mixture.per_token if mixture is not None else 0
    active = experts * routed / mixture.count if mixture is not None else 0.0
    if latent is None:
        attention = 2.0 * model.heads * model.head_dim
        keys = 2.0 * model.query_groups * model.head_dim
    else:
        attention = model.heads * (latent.nope_dim + latent.rope_dim + latent.value_dim)
        keys = float(latent.key_value_rank + latent.rope_dim)
    share = sum(layer.experts > 0 for layer in counts.layers) / model.layers
    inner = mixture.ffn if mixture is not None and share > 0.5 else model.ffn
    return LayerWork(
        matrices=2 * (dense + active),
        attention=2 * attention,
        width=min(inner, model.heads * model.head_dim),
        dense_weights=dense,
        expert_weights=experts,
        key_value_width=keys,
        routed=routed * share,
    )


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
