"""What a profile says, held against what the cluster says now: each difference as a row of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from hpc_launch.base.errors import UsageError
from hpc_launch.base.findings import Place
from hpc_launch.schedulers.slurm.parse_cluster import Partition
from hpc_launch.schedulers.slurm.query_cluster import Survey, survey
from hpc_launch.site_tools.learn import user_groups
from hpc_launch.site_tools.learning.draft_queues import closed, limiting, limits
from hpc_launch.site_tools.learning.hardware import Part, levelled, parts
from hpc_launch.sites.load_profile import load_site_profile
from hpc_launch.sites.node_classes import NodeClass
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.queues import Queue
from hpc_launch.sites.this_machine import names
from hpc_launch.spec.units import format_memory, format_time, parse_time


class Drift(Struct, frozen=True):
    """One difference: a key of the profile, what it says, what the cluster says, and what that does to jobs."""

    key: str
    profile: str | None
    cluster: str | None
    effect: str

    def as_json(self) -> dict[str, Any]:
        """The object of `sites check --live --json`."""
        return {key: getattr(self, key) for key in self.__struct_fields__}


def drift(name: str) -> list[Drift]:
    """Where the profile and this cluster differ. Raises Refused for a bad profile, UsageError for one without Slurm,
    Unreachable where Slurm does not answer."""
    profile = load_site_profile(name, Place("sites check"))
    if profile.scheduler.type != "slurm":
        raise UsageError(f"the profile {profile.name} is not for Slurm", "--live asks Slurm")
    return list(compare(profile, survey(names(os.environ)["user"]), user_groups()))


def compare(profile: SiteProfile, found: Survey, groups: frozenset[str]) -> Iterator[Drift]:
    """The differences, those of the whole first, then queue by queue."""
    yield from _whole(profile, found)
    nodes = levelled(found.nodes)
    by_name = {partition.name: partition for partition in found.partitions}
    classes: set[tuple[str, str]] = set()
    for name, queue in profile.queues.items():
        key = f"queues.{name}"
        if queue.qos is not None and found.accounting is not None and found.qos(queue.qos) is None:
            yield Drift(f"{key}.qos", queue.qos, None, "there is no such QOS")
        if queue.partition is None:
            continue
        partition = by_name.get(queue.partition)
        if partition is None:
            yield Drift(f"{key}.partition", queue.partition, None, "there is no such partition")
            continue
        if why := closed(partition, found, groups):
            yield Drift(f"{key}.partition", queue.partition, why, "jobs are refused, or never start")
        node = profile.node_classes.get(queue.node_class)
        part = _part(parts(partition, nodes), queue, node)
        if part is None or node is None:
            yield Drift(f"{key}.node_class", queue.node_class, None, "no node of the partition is of this kind")
            continue
        yield from _queue(key, queue, partition, part, found)
        if (queue.node_class, partition.name) not in classes:
            classes.add((queue.node_class, partition.name))
            yield from _nodes(f"node_classes.{queue.node_class}", node, part, found)
    known = {queue.partition for queue in profile.queues.values()}
    for partition in found.partitions:
        if partition.name not in known and closed(partition, found, groups) is None:
            yield Drift("queues", None, partition.name, "the profile has no queue for this partition")


def _whole(profile: SiteProfile, found: Survey) -> Iterator[Drift]:
    version = profile.scheduler.version
    if version and found.version and version.split(".")[:2] != found.version.split(".")[:2]:
        yield Drift("scheduler.version", version, found.version, "what depends on the release may be wrong")
    clusters = [probe.cluster for probe in profile.detect if probe.cluster]
    if clusters and found.name not in clusters:
        yield Drift("detect", ", ".join(clusters), found.name, "it is another cluster, or has another name now")


def _part(found: list[Part], queue: Queue, node: NodeClass | None) -> Part | None:
    """The nodes of the partition that the queue means: by the class's GPUs and constraints, else the most of them."""
    wanted = " ".join(filter(None, (queue.constraint, node.constraint if node else None)))
    features = set(re.findall(r"[\w.-]+", wanted))
    fitting = [part for part in found if features <= part.group.always | part.group.some] or found
    if node is not None:
        typed = [part for part in fitting if part.group.hardware.gpu_type == node.gpu_type]
        fitting = typed or [part for part in fitting if part.group.hardware.gpus == node.gpus] or fitting
    return next(iter(fitting), None)


def _queue(key: str, queue: Queue, partition: Partition, part: Part, found: Survey) -> Iterator[Drift]:
    row, _ = limits(partition, part, limiting(partition, found, found.qos(queue.qos)))
    times = [limit.time for limit in queue.limits if limit.time is not None]
    if times and "time" in row and max(times) != parse_time(row["time"]):
        shorter = parse_time(row["time"]) < max(times)
        effect = "longer jobs never start" if shorter else "longer jobs could run"
        yield Drift(f"{key}.limits", format_time(max(times)), row["time"], effect)
    ends = [limit.nodes.rpartition("-")[2] for limit in queue.limits]
    most = max((int(end) for end in ends if end), default=0)
    now = int(row["nodes"].rpartition("-")[2])
    if queue.limits and "" not in ends and most != now:
        effect = "larger jobs never start" if now < most else "larger jobs could run"
        yield Drift(f"{key}.limits", f"{most} nodes", f"{now} nodes", effect)
    if queue.default_time and partition.default_time and queue.default_time != partition.default_time:
        says, is_now = format_time(queue.default_time), format_time(partition.default_time)
        yield Drift(f"{key}.default_time", says, is_now, "a job that names no time gets the profile's")
    if partition.exclusive and not queue.whole_nodes:
        yield Drift(f"{key}.exclusive", "shared nodes", "whole nodes", "a job is charged for whole nodes")
    if queue.exclusive == "implied" and not partition.exclusive and found.settings.get("SelectType") != "select/linear":
        yield Drift(f"{key}.exclusive", "whole nodes", "shared nodes", "jobs of others run on the same nodes")
    features = part.group.always | part.group.some
    for name in sorted(set(re.findall(r"[\w.-]+", queue.constraint or "")) - features):
        yield Drift(f"{key}.constraint", name, None, "no node of the partition has this feature")


def _nodes(key: str, node: NodeClass, part: Part, found: Survey) -> Iterator[Drift]:
    hardware = part.group.hardware
    if node.cpus > hardware.cpus:
        yield Drift(f"{key}.cpus", str(node.cpus), str(hardware.cpus), "jobs that ask for all CPUs never start")
    if node.gpus != hardware.gpus:
        yield Drift(f"{key}.gpus", str(node.gpus), str(hardware.gpus), "jobs ask for another number than there is")
    if node.gpu_type and hardware.gpu_type and node.gpu_type != hardware.gpu_type and "type" in node.gpu_request:
        yield Drift(f"{key}.gpu_type", node.gpu_type, hardware.gpu_type, "requests by the type are refused")
    if node.memory and hardware.memory and node.memory > hardware.memory:
        says, has = format_memory(node.memory), format_memory(hardware.memory)
        yield Drift(f"{key}.memory", says, has, "jobs that ask for all of it never start")
    if node.arch and hardware.arch and node.arch != hardware.arch:
        yield Drift(f"{key}.arch", node.arch, hardware.arch, "images for the other do not run")
    select = found.settings.get("SelectType", "")
    if node.gpus and node.gpu_request.startswith("gpus") and select and not select.endswith("cons_tres"):
        yield Drift(f"{key}.gpu_request", node.gpu_request, select, "this Slurm knows --gres alone")
    features = part.group.always | part.group.some
    for name in sorted(set(re.findall(r"[\w.-]+", node.constraint or "")) - features):
        yield Drift(f"{key}.constraint", name, None, "no node of the partition has this feature")
