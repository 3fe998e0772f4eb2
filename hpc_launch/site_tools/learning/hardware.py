"""The nodes of a cluster in classes of the same hardware, with what tells the classes of a partition apart. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hpc_launch.schedulers.slurm.parse_cluster import ClusterNode, Partition

ALIKE = 0.9
"""Nodes of one kind differ a little in the memory that their firmware leaves: such count as the smallest of them."""

VENDORS = (
    ("nvidia", r"nvidia|tesla|geforce|rtx|quadro|gtx|titan|(v|p|k|a|t|l|h|b|gh|gb)\d{1,3}s?(?![a-z])"),
    ("amd", r"mi\d{2,3}[ax]?|amd|instinct|radeon"),
    ("intel", r"pvc|max1\d{3}|max_?series|ponte"),
)
"""Whose GPUs they are, by the type that Slurm was told."""


@dataclass(frozen=True)
class Hardware:
    """What the nodes of a class have in common. Memory is MiB."""

    cpus: int
    threads_per_core: int
    memory: int | None
    arch: str | None
    gpus: int
    gpu_type: str | None


@dataclass(frozen=True)
class Group:
    """Nodes of one partition and one hardware."""

    hardware: Hardware
    nodes: int
    always: frozenset[str]
    """Features that all of them have."""
    some: frozenset[str]
    """Features that some have."""


@dataclass(frozen=True)
class Part:
    """A group under a name, and what Slurm must be asked for so that a job gets these nodes."""

    group: Group
    constraint: str | None = None
    by_type: bool = False
    """Whether the type of the GPUs has to stand in the request."""
    unclear: bool = False
    """Whether nothing tells the group from others of the partition."""


def parts(partition: Partition, nodes: Sequence[ClusterNode]) -> list[Part]:
    """The groups of a partition, that with the most nodes first."""
    mine = [_capped(node, partition) for node in nodes if partition.name in node.partitions]
    groups = sorted(_groups(mine), key=lambda group: (-group.nodes, group.hardware.gpu_type or ""))
    return [_told_apart(group, [other for other in groups if other is not group]) for group in groups]


def levelled(nodes: Iterable[ClusterNode]) -> list[ClusterNode]:
    """All nodes, those of nearly the same memory with that of the smallest."""
    found = []
    least: dict[Hardware, int] = {}
    for node in sorted(nodes, key=lambda node: node.memory or 0):
        kind = replace(hardware(node), memory=None)
        if node.memory and not least.get(kind, 0) >= node.memory * ALIKE:
            least[kind] = node.memory
        found.append(replace(node, memory=least.get(kind)))
    return found


def hardware(node: ClusterNode) -> Hardware:
    """What a node has, of GPUs those of the type that it has most of."""
    most = node.gpus[0] if node.gpus else None
    return Hardware(
        cpus=node.cpus,
        threads_per_core=node.threads_per_core,
        memory=node.memory,
        arch=node.arch,
        gpus=most.count if most else 0,
        gpu_type=most.type if most else None,
    )


def vendor(gpu_type: str | None) -> str | None:
    """Whose GPUs they are, where the type tells."""
    return next((name for name, words in VENDORS if re.match(words, gpu_type or "", re.IGNORECASE)), None)


def names(all_parts: Iterable[Part]) -> dict[Hardware, str]:
    """A name for each hardware: that with the most nodes has the shortest, the next ones say what is otherwise."""
    ordered = sorted(all_parts, key=lambda part: -part.group.nodes)
    result: dict[Hardware, str] = {}
    for kind in dict.fromkeys(part.group.hardware for part in ordered):
        taken = {name for other in result for name in _possible(other)}
        free = (name for name in _possible(kind) if name not in taken)
        result[kind] = next(free, f"{_possible(kind)[-1]}-{len(result) + 1}")
    return result


def _possible(kind: Hardware) -> list[str]:
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
    found = []
    for kind, members in kinds.items():
        always = frozenset.intersection(*(node.features for node in members))
        some = frozenset.union(*(node.features for node in members)) - always
        found.append(Group(kind, len(members), always, some))
    return found


def _told_apart(group: Group, others: Sequence[Group]) -> Part:
    """How Slurm is told that these nodes are meant: by the GPUs' type, else by a feature that only they have."""
    kind = group.hardware
    if not others:
        return Part(group)
    if kind.gpus and kind.gpu_type and all(other.hardware.gpu_type != kind.gpu_type for other in others):
        return Part(group, by_type=True)
    foreign = frozenset.union(*(other.always | other.some for other in others))
    own = sorted(group.always - foreign)
    if own:
        return Part(group, constraint=own[0])
    by_type = bool(kind.gpus and kind.gpu_type)
    return Part(group, by_type=by_type, unclear=True)
