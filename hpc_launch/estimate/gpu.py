"""What a GPU and its links can do, as far as the time of a step depends on it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from hpc_launch.job.yaml_source import parse_list
from hpc_launch.sites.node_classes import Fabric, NodeClass, overlay_fabric


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
    source: str


class KnownGpu(Struct, frozen=True, kw_only=True):
    """A GPU with its figures, their source, and what had to be assumed."""

    gpu: Gpu
    source: str
    assumptions: tuple[str, ...] = ()


class UnknownGpu(Struct, frozen=True, kw_only=True):
    """No figures: why, and what would help."""

    reason: str
    hint: str


@cache
def published_gpus() -> tuple[GpuFigures, ...]:
    """All rows of `gpus.yaml`."""
    rows, _ = parse_list(FILE.read_text(encoding="utf-8"), FILE.name)
    return tuple(msgspec.convert(rows, list[GpuFigures]))


def gpu_of_node_class(name: str, node: NodeClass, site_fabric: Fabric) -> KnownGpu | UnknownGpu:
    """The GPU of a site profile's node class: by `gpu_type`, else by the class's name, else by its description."""
    fabric, _ = overlay_fabric(site_fabric, node.fabric)
    if not node.gpus:
        return UnknownGpu(reason=f"nodes of class {name} have no GPUs", hint="choose a queue with GPUs")
    return find_gpu(
        [node.gpu_type or "", name, node.about], memory=node.gpu_memory, per_node=node.gpus, fabric=fabric.kind
    )


def find_gpu(
    names: Sequence[str], *, memory: int | None = None, per_node: int, fabric: str | None = None
) -> KnownGpu | UnknownGpu:
    """The GPU that the first telling name means. `memory` in MiB decides between its sizes.

    Form words (`pcie`, `nvl`) count wherever they occur. Two GPUs in one name, or a size that is not for sale, are
    unknown: figures of a similar GPU would be a guess.
    """
    everything = " ".join(names).lower()
    for name in names:
        rows = [row for row in published_gpus() if _named(row, name.lower(), everything)]
        if rows:
            found = _of_size(rows, memory or _size_in(name))
            return found if isinstance(found, UnknownGpu) else _known(found, everything, memory, per_node, fabric)
    given = next((name for name in names if name), "")
    return UnknownGpu(
        reason=f"no figures for GPU {given}" if given else "the GPU's type is unknown",
        hint="set `gpu_type` and `gpu_memory` of the node class, such as h100 and 80G",
    )


def _of_size(rows: list[GpuFigures], memory: int | None) -> GpuFigures | UnknownGpu:
    families = sorted({row.words[0] for row in rows})
    if len(families) > 1:
        return UnknownGpu(reason="the name fits " + " and ".join(families), hint="set `gpu_type` of the node class")
    fitting = [row for row in rows if memory is None or abs(row.memory / memory - 1) <= _MEMORY_TOLERANCE]
    if len(fitting) != 1:
        sizes = ", ".join(row.name for row in rows)
        if memory is None:
            return UnknownGpu(reason=f"it may be any of: {sizes}", hint="set `gpu_memory` of the node class")
        return UnknownGpu(
            reason=f"no figures for a GPU of {memory / 1024:.0f} GiB among: {sizes}", hint="check `gpu_memory`"
        )
    return fitting[0]


def _known(row: GpuFigures, everything: str, memory: int | None, per_node: int, fabric: str | None) -> KnownGpu:
    rate = row.network.get(fabric or "", row.network["default"])
    assumptions = [] if row.assumed.lower() in everything else [row.assumed]
    assumptions.append(f"network of {rate * 8:g} Gb/s per GPU")
    gpu = Gpu(
        name=row.name,
        memory=min(row.memory, memory or row.memory) * _MEBIBYTE,
        flops=row.tflops * 1e12,
        memory_bandwidth=row.memory_bandwidth * _GIGA,
        node_bandwidth=row.node * _GIGA,
        network_bandwidth=rate * _GIGA,
        per_node=per_node,
    )
    return KnownGpu(gpu=gpu, source=row.source, assumptions=tuple(assumptions))


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
