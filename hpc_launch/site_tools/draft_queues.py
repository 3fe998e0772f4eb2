"""Queues of a cluster for one user: its partitions, their nodes by hardware, and the QOS that limit or select. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpc_launch.job.units import format_time
from hpc_launch.schedulers.slurm.parse_jobs import number
from hpc_launch.schedulers.slurm.query_cluster import ClusterNode, Partition, Row, Survey, resources, seconds

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


REQUEUES_BY_MODE = {"REQUEUE": True, "CANCEL": False}
"""Slurm's PreemptMode: whether a preempted job is requeued (slurm.conf(5))."""


Fact = tuple[str, Any, str | None]
"""A key of a queue, its value, and the source."""


def no_access_reason(partition: Partition, survey: Survey, groups: frozenset[str]) -> str | None:
    """Why the user cannot submit to a partition. None if no reason is known."""
    accounting = survey.accounting
    accounts = frozenset(accounting.accounts) if accounting else frozenset()
    if partition.root_only:
        return "for root only"
    if not partition.up:
        return "not up"
    if partition.reservation_only:
        return "only within a reservation"
    if partition.groups and not groups & set(partition.groups):
        return f"for the groups {', '.join(partition.groups)}"
    if partition.accounts and accounts and not accounts & set(partition.accounts):
        return f"for the accounts {', '.join(partition.accounts)}"
    if accounts and accounts <= set(partition.denied_accounts):
        return "not available to your accounts"
    allowed_qos = frozenset(accounting.allowed_qos) if accounting else frozenset()
    if partition.qos_allowed and allowed_qos and not allowed_qos & set(partition.qos_allowed):
        return f"for the QOS {', '.join(partition.qos_allowed)}"
    return None


def queues(
    partition: Partition, found: list[Part], names: Mapping[Hardware, str], survey: Survey
) -> Iterator[tuple[str, list[Fact]]]:
    """A queue for each type of node in a partition, and for each QOS that a job may select: its name and facts."""
    for at, part in enumerate(found):
        class_name = names[part.group.hardware]
        name = partition.name if at == 0 else f"{partition.name}-{class_name}"
        choices = list(_choices(partition, survey))
        required_qos = choices.pop(0) if choices and _needs_qos(partition, survey) else None
        yield name, _facts(partition, part, class_name, survey, required_qos)
        for qos in choices if at == 0 else ():
            yield f"{name}-{qos['name']}", _facts(partition, part, class_name, survey, qos)


def _needs_qos(partition: Partition, survey: Survey) -> bool:
    """Whether jobs without a QOS are rejected because the partition does not allow the default QOS."""
    default = survey.accounting.default_qos if survey.accounting else None
    denied = default in partition.qos_denied
    return denied or (bool(partition.qos_allowed) and default not in partition.qos_allowed)


def _choices(partition: Partition, survey: Survey) -> Iterator[Row]:
    """QOS that the user may select and that the partition allows explicitly, or that the default partition accepts."""
    accounting = survey.accounting
    if accounting is None or partition.qos is not None:
        return
    for name in accounting.allowed_qos:
        open_to_all = not partition.qos_allowed and (partition.default or _needs_qos(partition, survey))
        permitted = name in partition.qos_allowed or open_to_all
        qos = survey.qos(name)
        if permitted and qos and name != accounting.default_qos and name not in partition.qos_denied:
            yield qos


def _facts(partition: Partition, part: Part, class_name: str, survey: Survey, chosen: Row | None) -> list[Fact]:
    """What the profile says about a queue. `chosen`: the QOS that its jobs select."""
    limit = effective_qos(partition, survey, chosen)
    row, sources = limits(partition, part, limit)
    least, most = (resources(limit[key]).get("gres/gpu") if limit else None for key in ("mintres", "maxtres"))
    select, counted = (survey.settings.get(key, "") for key in ("SelectType", "SelectTypeParameters"))
    whole = partition.exclusive or select.endswith("linear")
    facts: tuple[Fact, ...] = (
        ("partition", partition.name, f"{part.group.nodes} nodes"),
        ("node_class", class_name, None),
        ("qos", chosen["name"] if chosen else None, None),
        ("constraint", part.constraint, "distinguishes these nodes from others in the partition"),
        ("default_time", format_time(partition.default_time) if partition.default_time else None, "DefaultTime"),
        ("limits", [row], sources),
        ("max_jobs", number(limit["maxjobspu"]) if limit else None, None),
        ("max_submitted", number(limit["maxsubmitpu"]) if limit else None, None),
        (
            "gpus",
            f"{least or 1}-{most or ''}" if part.group.hardware.gpus and (least or most) else None,
            f"QOS {limit['name']}" if limit else None,
        ),
        (
            "exclusive",
            "implied" if whole else None,
            "OverSubscribe=EXCLUSIVE" if partition.exclusive else "SelectType=select/linear",
        ),
        ("memory", None if "MEMORY" in counted.upper() else "omit", f"SelectTypeParameters={counted}"),
        ("preemption", _preemption(partition, survey), f"PreemptMode={partition.preempt_mode}"),
    )
    return [fact for fact in facts if fact[1]]


def effective_qos(partition: Partition, survey: Survey, chosen: Row | None) -> Row | None:
    """The QOS whose limits apply: the partition's, else the selected one, else the user's default."""
    if partition.qos is not None:
        return survey.qos(partition.qos)
    if chosen is not None:
        return chosen
    enforced = survey.enforced & {"limits", "safe", "qos"}
    return survey.qos(survey.accounting.default_qos) if survey.accounting and enforced else None


def limits(partition: Partition, part: Part, limit: Row | None) -> tuple[dict[str, str], str]:
    """Limits for these nodes of a partition, and their source."""
    sources = [f"MaxTime, MaxNodes of {partition.name}"]
    max_nodes = min(partition.max_nodes or part.group.nodes, part.group.nodes)
    times = [partition.max_time]
    if limit is not None:
        times.append(seconds(limit["maxwall"]))
        max_nodes = min(max_nodes, resources(limit["maxtres"]).get("node", max_nodes))
        sources.append(f"QOS {limit['name']}")
    known_times = [time for time in times if time is not None]
    row = {"nodes": f"{partition.min_nodes}-{max(max_nodes, partition.min_nodes)}"}
    if known_times:
        row["time"] = format_time(min(known_times))
    return row, "; ".join(sources)


def _preemption(partition: Partition, survey: Survey) -> dict[str, Any] | None:
    if survey.settings.get("PreemptType", "").endswith("none") or partition.preempt_mode not in REQUEUES_BY_MODE:
        return None
    found: dict[str, Any] = {"requeued": REQUEUES_BY_MODE[partition.preempt_mode]}
    if partition.grace_s:
        found["grace"] = f"{partition.grace_s}s"
        found["signal"] = "SIGTERM"
    return found
