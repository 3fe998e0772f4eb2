"""Queues of a cluster for one user: its partitions, and the QOS that limit or select within them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpc_launch.job.units import format_time
from hpc_launch.schedulers.slurm.parse_cluster import Partition, Qos
from hpc_launch.schedulers.slurm.query_cluster import Survey
from hpc_launch.site_tools.learning.hardware import Hardware, Part

REQUEUES_BY_MODE = {"REQUEUE": True, "CANCEL": False}
"""Slurm's PreemptMode: whether a preempted job is requeued (slurm.conf(5))."""


@dataclass(frozen=True)
class LearnedQueue:
    """A queue with its name and the sources of its facts, by key."""

    name: str
    data: Mapping[str, Any]
    notes: Mapping[str, str]
    qos: str | None


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
) -> Iterator[LearnedQueue]:
    """A queue for each type of node in a partition, and for each QOS that a job may select."""
    for at, part in enumerate(found):
        class_name = names[part.group.hardware]
        name = partition.name if at == 0 else f"{partition.name}-{class_name}"
        choices = list(_choices(partition, survey))
        required_qos = choices.pop(0) if choices and _needs_qos(partition, survey) else None
        yield _queue(name, partition, part, class_name, survey, required_qos)
        for qos in choices if at == 0 else ():
            yield _queue(f"{name}-{qos.name}", partition, part, class_name, survey, qos)


def _needs_qos(partition: Partition, survey: Survey) -> bool:
    """Whether jobs without a QOS are rejected because the partition does not allow the default QOS."""
    default = survey.accounting.default_qos if survey.accounting else None
    denied = default in partition.qos_denied
    return denied or (bool(partition.qos_allowed) and default not in partition.qos_allowed)


def _choices(partition: Partition, survey: Survey) -> Iterator[Qos]:
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


def _queue(  # noqa: PLR0917 - what a queue is made of
    name: str, partition: Partition, part: Part, class_name: str, survey: Survey, chosen: Qos | None
) -> LearnedQueue:
    limit = effective_qos(partition, survey, chosen)
    notes = {"partition": f"{part.group.nodes} nodes"}
    data: dict[str, Any] = {"partition": partition.name, "node_class": class_name}
    if chosen is not None:
        data["qos"] = chosen.name
    if part.constraint is not None:
        data["constraint"] = part.constraint
        notes["constraint"] = "distinguishes these nodes from others in the partition"
    if partition.default_time:
        data["default_time"] = format_time(partition.default_time)
        notes["default_time"] = "DefaultTime"
    rows, sources = limits(partition, part, limit)
    data["limits"] = [rows]
    notes["limits"] = sources
    if limit and limit.max_jobs:
        data["max_jobs"] = limit.max_jobs
    if limit and limit.max_submitted:
        data["max_submitted"] = limit.max_submitted
    gpus = _range(limit.least.get("gres/gpu"), limit.most.get("gres/gpu")) if limit else None
    if gpus and part.group.hardware.gpus:
        data["gpus"] = gpus
        notes["gpus"] = f"QOS {limit.name}" if limit else ""
    if partition.exclusive or survey.settings.get("SelectType", "").endswith("linear"):
        data["exclusive"] = "implied"
        notes["exclusive"] = "OverSubscribe=EXCLUSIVE" if partition.exclusive else "SelectType=select/linear"
    if "MEMORY" not in survey.settings.get("SelectTypeParameters", "").upper():
        data["memory"] = "omit"
        notes["memory"] = f"SelectTypeParameters={survey.settings.get('SelectTypeParameters', '')}"
    if (preemption := _preemption(partition, survey)) is not None:
        data["preemption"] = preemption
        notes["preemption"] = f"PreemptMode={partition.preempt_mode}"
    return LearnedQueue(name, data, notes, chosen.name if chosen else None)


def effective_qos(partition: Partition, survey: Survey, chosen: Qos | None) -> Qos | None:
    """The QOS whose limits apply: the partition's, else the selected one, else the user's default."""
    if partition.qos is not None:
        return survey.qos(partition.qos)
    if chosen is not None:
        return chosen
    enforced = survey.enforced & {"limits", "safe", "qos"}
    return survey.qos(survey.accounting.default_qos) if survey.accounting and enforced else None


def limits(partition: Partition, part: Part, limit: Qos | None) -> tuple[dict[str, str], str]:
    """Limits for these nodes of a partition, and their source."""
    sources = [f"MaxTime, MaxNodes of {partition.name}"]
    max_nodes = min(partition.max_nodes or part.group.nodes, part.group.nodes)
    times = [partition.max_time]
    if limit is not None:
        times.append(limit.max_time)
        max_nodes = min(max_nodes, limit.most.get("node", max_nodes))
        sources.append(f"QOS {limit.name}")
    known_times = [time for time in times if time is not None]
    row = {"nodes": f"{partition.min_nodes}-{max(max_nodes, partition.min_nodes)}"}
    if known_times:
        row["time"] = format_time(min(known_times))
    return row, "; ".join(sources)


def _range(least: int | None, max_nodes: int | None) -> str | None:
    return f"{least or 1}-{max_nodes or ''}" if least or max_nodes else None


def _preemption(partition: Partition, survey: Survey) -> dict[str, Any] | None:
    if survey.settings.get("PreemptType", "").endswith("none") or partition.preempt_mode not in REQUEUES_BY_MODE:
        return None
    found: dict[str, Any] = {"requeued": REQUEUES_BY_MODE[partition.preempt_mode]}
    if partition.grace_s:
        found["grace"] = f"{partition.grace_s}s"
        found["signal"] = "SIGTERM"
    return found
