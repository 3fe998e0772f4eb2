"""Compare a profile with the current state of its cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.base.findings import Place
from hpc_launch.job.units import format_memory, format_time, parse_time
from hpc_launch.schedulers.slurm.query_cluster import Partition, Survey, survey
from hpc_launch.site_tools.draft_queues import Part, effective_qos, level_memory, limits, no_access_reason, parts
from hpc_launch.site_tools.learn import user_groups
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.queues import NodeClass, Queue
from hpc_launch.sites.read_profile import load_site_profile
from hpc_launch.sites.this_machine import names


class Drift(Struct, frozen=True):
    """One difference, an object of `sites check --live --json`: a key, both values, and the effect on jobs."""

    key: str
    profile: str | None
    cluster: str | None
    effect: str


def drift(name: str) -> list[Drift]:
    """Differences between the profile and this cluster.

    Raises Refused for an invalid profile, UsageError for one without Slurm, Unreachable if Slurm does not respond.
    """
    profile = load_site_profile(name, Place("sites check"))
    if profile.scheduler.type != "slurm":
        raise UsageError(f"the profile {profile.name} is not for Slurm", "--live requires a Slurm profile")
    return list(compare(profile, survey(names(os.environ)["user"]), user_groups()))


def compare(profile: SiteProfile, cluster: Survey, groups: frozenset[str]) -> Iterator[Drift]:
    """Differences, those of the whole cluster first, then by queue."""
    version = profile.scheduler.version
    if version and cluster.version and version.split(".")[:2] != cluster.version.split(".")[:2]:
        yield Drift("scheduler.version", version, cluster.version, "settings that depend on the release may be wrong")
    clusters = [probe.cluster for probe in profile.detect if probe.cluster]
    if clusters and cluster.name not in clusters:
        yield Drift("detect", ", ".join(clusters), cluster.name, "this is another cluster, or it was renamed")
    nodes = level_memory(cluster.nodes)
    by_name = {partition.name: partition for partition in cluster.partitions}
    classes: set[tuple[str, str]] = set()
    for name, queue in profile.queues.items():
        key = f"queues.{name}"
        if queue.qos is not None and cluster.accounting is not None and cluster.qos(queue.qos) is None:
            yield Drift(f"{key}.qos", queue.qos, None, "this QOS does not exist")
        if queue.partition is None:
            continue
        partition = by_name.get(queue.partition)
        if partition is None:
            yield Drift(f"{key}.partition", queue.partition, None, "this partition does not exist")
            continue
        if why := no_access_reason(partition, cluster, groups):
            yield Drift(f"{key}.partition", queue.partition, why, "jobs are rejected or never start")
        node = profile.node_classes.get(queue.node_class)
        part = _matching_part(parts(partition, nodes), queue, node)
        if part is None or node is None:
            yield Drift(f"{key}.node_class", queue.node_class, None, "no node of the partition has this hardware")
            continue
        yield from _queue_drift(key, queue, partition, part, cluster)
        if (queue.node_class, partition.name) not in classes:
            classes.add((queue.node_class, partition.name))
            yield from _node_drift(f"node_classes.{queue.node_class}", node, part, cluster)
    partitions = {queue.partition for queue in profile.queues.values()}
    for partition in cluster.partitions:
        if partition.name not in partitions and no_access_reason(partition, cluster, groups) is None:
            yield Drift("queues", None, partition.name, "the profile has no queue for this partition")


def _matching_part(cluster: list[Part], queue: Queue, node: NodeClass | None) -> Part | None:
    """Nodes of the partition that the queue refers to: by the class's GPUs and constraints, else the largest group."""
    constraints = " ".join(filter(None, (queue.constraint, node.constraint if node else None)))
    features = set(re.findall(r"[\w.-]+", constraints))
    matching = [part for part in cluster if features <= part.group.always | part.group.some] or cluster
    if node is not None:
        typed = [part for part in matching if part.group.hardware.gpu_type == node.gpu_type]
        matching = typed or [part for part in matching if part.group.hardware.gpus == node.gpus] or matching
    return next(iter(matching), None)


def _queue_drift(key: str, queue: Queue, partition: Partition, part: Part, cluster: Survey) -> Iterator[Drift]:
    row, _ = limits(partition, part, effective_qos(partition, cluster, cluster.qos(queue.qos)))
    longest = max((limit.time for limit in queue.limits if limit.time is not None), default=None)
    time = parse_time(row["time"]) if "time" in row else None
    effect = "longer jobs never start" if time and longest and time < longest else "longer jobs could run"
    yield from _difference(f"{key}.limits", longest, time, effect, format_time)
    ends = [limit.nodes.rpartition("-")[2] for limit in queue.limits]
    most = max(map(int, ends), default=queue.size) if all(ends) else queue.size
    nodes = int(row["nodes"].rpartition("-")[2])
    effect = "larger jobs never start" if most and nodes < most else "larger jobs could run"
    yield from _difference(f"{key}.limits", most, nodes, effect, "{} nodes".format)
    effect = "jobs without a time limit get the profile's default"
    yield from _difference(f"{key}.default_time", queue.default_time, partition.default_time, effect, format_time)
    if partition.exclusive and not queue.whole_nodes:
        yield Drift(f"{key}.exclusive", "shared nodes", "whole nodes", "jobs are charged for whole nodes")
    linear = cluster.settings.get("SelectType") == "select/linear"
    if queue.exclusive == "implied" and not partition.exclusive and not linear:
        yield Drift(f"{key}.exclusive", "whole nodes", "shared nodes", "other users' jobs run on the same nodes")
    yield from _missing_features(key, queue.constraint, part)


def _node_drift(key: str, node: NodeClass, part: Part, cluster: Survey) -> Iterator[Drift]:
    hardware = part.group.hardware
    effect = "jobs that request all CPUs never start"
    yield from _difference(f"{key}.cpus", node.cpus, min(node.cpus, hardware.cpus), effect)
    if node.gpus != hardware.gpus:
        yield Drift(f"{key}.gpus", str(node.gpus), str(hardware.gpus), "jobs request the wrong number of GPUs")
    if "type" in node.gpu_request:
        effect = "requests with this type are rejected"
        yield from _difference(f"{key}.gpu_type", node.gpu_type, hardware.gpu_type, effect)
    least = min(node.memory or 0, hardware.memory or 0)
    yield from _difference(
        f"{key}.memory", node.memory, least, "jobs that request all memory never start", format_memory
    )
    effect = "images for the profile's architecture do not run"
    yield from _difference(f"{key}.arch", node.arch, hardware.arch, effect)
    select = cluster.settings.get("SelectType", "")
    if node.gpus and node.gpu_request.startswith("gpus") and select and not select.endswith("cons_tres"):
        yield Drift(f"{key}.gpu_request", node.gpu_request, select, "this Slurm only supports --gres")
    yield from _missing_features(key, node.constraint, part)


def _difference(key: str, ours: Any, theirs: Any, effect: str, write: Callable[[Any], str] = str) -> Iterator[Drift]:
    """Two values that are known and differ."""
    if ours and theirs and ours != theirs:
        yield Drift(key, write(ours), write(theirs), effect)


def _missing_features(key: str, constraint: str | None, part: Part) -> Iterator[Drift]:
    features = part.group.always | part.group.some
    for name in sorted(set(re.findall(r"[\w.-]+", constraint or "")) - features):
        yield Drift(f"{key}.constraint", name, None, "no node of the partition has this feature")
