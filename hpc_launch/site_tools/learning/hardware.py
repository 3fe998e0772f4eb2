"""Group a cluster's nodes by hardware, and find out how to request each group of a partition. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hpc_launch.schedulers.slurm.parse_cluster import ClusterNode, Partition

MEMORY_TOLERANCE = 0.9
"""Nodes of one type differ slightly in memory, depending on their firmware. They count as the smallest of them."""

VENDORS = (
    ("nvidia", r"nvidia|tesla|geforce|rtx|quadro|gtx|titan|(v|p|k|a|t|l|h|b|gh|gb)\d{1,3}s?(?![a-z])"),
    ("amd", r"mi\d{2,3}[ax]?|amd|instinct|radeon"),
    ("intel", r"pvc|max1\d{3}|max_?series|ponte"),
)
"""GPU vendor by Slurm's GPU type."""


@dataclass(frozen=True)
class Hardware:
    """Common properties of a group's nodes. Memory is in MiB."""

    cpus: int
    threads_per_core: int
    memory: int | None
    arch: str | None
    gpus: int
    gpu_type: str | None


@dataclass(frozen=True)
class Group:
    """Nodes of one partition with the same hardware."""

    hardware: Hardware
    nodes: int
    always: frozenset[str]
    """Features that all of them have."""
    some: frozenset[str]
    """Features that only some of them have."""


@dataclass(frozen=True)
class Part:
    """A group, and how to request exactly these nodes."""

    group: Group
    constraint: str | None = None
    by_type: bool = False
    """Whether the request must include the GPU type."""
    unclear: bool = False
    """Whether the group cannot be distinguished from others in the partition."""


def parts(partition: Partition, nodes: Sequence[ClusterNode]) -> list[Part]:
    """Groups of a partition, largest first."""
    partition_nodes = [_capped(node, partition) for node in nodes if partition.name in node.partitions]
    groups = sorted(_groups(partition_nodes), key=lambda group: (-group.nodes, group.hardware.gpu_type or ""))
    return [_distinguish(group, [other for other in groups if other is not group]) for group in groups]


def level_memory(nodes: Iterable[ClusterNode]) -> list[ClusterNode]:
    """All nodes; those with nearly the same memory get the smallest value."""
    result = []
    least: dict[Hardware, int] = {}
    for node in sorted(nodes, key=lambda node: node.memory or 0):
        kind = replace(hardware(node), memory=None)
        if node.memory and not least.get(kind, 0) >= node.memory * MEMORY_TOLERANCE:
            least[kind] = node.memory
        result.append(replace(node, memory=least.get(kind)))
    return result


def hardware(node: ClusterNode) -> Hardware:
    """Hardware of a node, with its most frequent type of GPU."""
    main_gpus = node.gpus[0] if node.gpus else None
    return Hardware(
        cpus=node.cpus,
        threads_per_core=node.threads_per_core,
        memory=node.memory,
        arch=node.arch,
        gpus=main_gpus.count if main_gpus else 0,
        gpu_type=main_gpus.type if main_gpus else None,
    )


def vendor(gpu_type: str | None) -> str | None:
    """GPU vendor, if the type reveals it."""
    return next((name for name, words in VENDORS if re.match(words, gpu_type or "", re.IGNORECASE)), None)


def names(all_parts: Iterable[Part]) -> dict[Hardware, str]:
    """A name for each hardware: the largest group has the shortest name, the others add what differs."""
    ordered = sorted(all_parts, key=lambda part: -part.group.nodes)
    result: dict[Hardware, str] = {}
    for kind in dict.fromkeys(part.group.hardware for part in ordered):
        used_names = {name for other in result for name in _name_candidates(other)}
        unused_names = (name for name in _name_candidates(kind) if name not in used_names)
        result[kind] = next(unused_names, f"{_name_candidates(kind)[-1]}-{len(result) + 1}")
    return result


def _name_candidates(kind: Hardware) -> list[str]:
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", kind.gpu_type or "").strip("-.") or "gpu" if kind.gpus else "cpu"
    counted = f"{base}x{kind.gpus}" if kind.gpus else f"{base}{kind.cpus}"
    sized = f"{counted}-{(kind.memory or 0) // 1024}g"
    return [base, counted, sized, f"{sized}-{kind.cpus}", f"{sized}-{kind.cpus}-{kind.arch or 'any'}"]


def _capped(node: ClusterNode, partition: Partition) -> ClusterNode:
    cpus = min(node.cpus, partition.max_cpus_per_node or node.cpus)
    memory = min(node.memory, partition.max_memory_per_node or node.memory) if node.memory else None
    return replace(node, cpus=cpus, memory=memory)


def _groups(nodes: Iterable[ClusterNode]) -> list[Group]:
    kinds: dict[Hardware, list[ClusterNode]] = {}
    for node in nodes:
        kinds.setdefault(hardware(node), []).append(node)
    result = []
    for kind, members in kinds.items():
        always = frozenset.intersection(*(node.features for node in members))
        some = frozenset.union(*(node.features for node in members)) - always
        result.append(Group(kind, len(members), always, some))
    return result


def _distinguish(group: Group, others: Sequence[Group]) -> Part:
    """How to request exactly these nodes: by GPU type, else by a feature that only they have."""
    kind = group.hardware
    if not others:
        return Part(group)
    if kind.gpus and kind.gpu_type and all(other.hardware.gpu_type != kind.gpu_type for other in others):
        return Part(group, by_type=True)
    other_features = frozenset.union(*(other.always | other.some for other in others))
    unique_features = sorted(group.always - other_features)
    if unique_features:
        return Part(group, constraint=unique_features[0])
    by_type = bool(kind.gpus and kind.gpu_type)
    return Part(group, by_type=by_type, unclear=True)
