"""The queues of a cluster for one user: its partitions, with the QOS that limit or select within them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpc_launch.schedulers.slurm.parse_cluster import Partition, Qos
from hpc_launch.schedulers.slurm.query_cluster import Survey
from hpc_launch.site_tools.learning.hardware import Hardware, Part
from hpc_launch.spec.units import format_time

PREEMPTED = {"REQUEUE": True, "CANCEL": False}
"""Slurm's PreemptMode: whether a job that is stopped for another one is queued again (slurm.conf(5))."""


@dataclass(frozen=True)
class Learned:
    """A queue under its name, and where its facts come from, by key."""

    name: str
    data: Mapping[str, Any]
    notes: Mapping[str, str]
    qos: str | None


def closed(partition: Partition, survey: Survey, groups: frozenset[str]) -> str | None:
    """Why the user cannot submit to a partition; None where nothing is known against it."""
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
        return "not for your accounts"
    mine = frozenset(accounting.allowed_qos) if accounting else frozenset()
    if partition.qos_allowed and mine and not mine & set(partition.qos_allowed):
        return f"for the QOS {', '.join(partition.qos_allowed)}"
    return None


def queues(partition: Partition, found: list[Part], names: Mapping[Hardware, str], survey: Survey) -> Iterator[Learned]:
    """A queue for each kind of node of a partition, and for each QOS that a job may choose there."""
    for at, part in enumerate(found):
        class_name = names[part.group.hardware]
        name = partition.name if at == 0 else f"{partition.name}-{class_name}"
        choices = list(_choices(partition, survey))
        plain = choices.pop(0) if choices and _needs_qos(partition, survey) else None
        yield _queue(name, partition, part, class_name, survey, plain)
        for qos in choices if at == 0 else ():
            yield _queue(f"{name}-{qos.name}", partition, part, class_name, survey, qos)


def _needs_qos(partition: Partition, survey: Survey) -> bool:
    """Whether a job that names no QOS is refused: the partition does not let its default pass."""
    default = survey.accounting.default_qos if survey.accounting else None
    refused = default in partition.qos_denied
    return refused or (bool(partition.qos_allowed) and default not in partition.qos_allowed)


def _choices(partition: Partition, survey: Survey) -> Iterator[Qos]:
    """QOS that the user may ask for here and that the partition names, or that the default partition lets pass."""
    accounting = survey.accounting
    if accounting is None or partition.qos is not None:
        return
    for name in accounting.allowed_qos:
        open_to_all = not partition.qos_allowed and (partition.default or _needs_qos(partition, survey))
        named = name in partition.qos_allowed or open_to_all
        qos = survey.qos(name)
        if named and qos and name != accounting.default_qos and name not in partition.qos_denied:
            yield qos


def _queue(  # noqa: PLR0917 - what a queue is made of
    name: str, partition: Partition, part: Part, class_name: str, survey: Survey, chosen: Qos | None
) -> Learned:
    limit = limiting(partition, survey, chosen)
    notes = {"partition": f"{part.group.nodes} nodes"}
    data: dict[str, Any] = {"partition": partition.name, "node_class": class_name}
    if chosen is not None:
        data["qos"] = chosen.name
    if part.constraint is not None:
        data["constraint"] = part.constraint
        notes["constraint"] = "only these nodes of the partition have it"
    if partition.default_time:
        data["default_time"] = format_time(partition.default_time)
        notes["default_time"] = "DefaultTime"
    rows, said = limits(partition, part, limit)
    data["limits"] = [rows]
    notes["limits"] = said
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
    return Learned(name, data, notes, chosen.name if chosen else None)


def limiting(partition: Partition, survey: Survey, chosen: Qos | None) -> Qos | None:
    """The QOS whose limits hold: the partition's own, else the one that is asked for, else the user's default."""
    if partition.qos is not None:
        return survey.qos(partition.qos)
    if chosen is not None:
        return chosen
    counted = survey.enforced & {"limits", "safe", "qos"}
    return survey.qos(survey.accounting.default_qos) if survey.accounting and counted else None


def limits(partition: Partition, part: Part, limit: Qos | None) -> tuple[dict[str, str], str]:
    """The row of limits for these nodes of a partition, and where it is from."""
    said = [f"MaxTime, MaxNodes of {partition.name}"]
    most = min(partition.max_nodes or part.group.nodes, part.group.nodes)
    times = [partition.max_time]
    if limit is not None:
        times.append(limit.max_time)
        most = min(most, limit.most.get("node", most))
        said.append(f"QOS {limit.name}")
    known = [time for time in times if time is not None]
    row = {"nodes": f"{partition.min_nodes}-{max(most, partition.min_nodes)}"}
    if known:
        row["time"] = format_time(min(known))
    return row, "; ".join(said)


def _range(least: int | None, most: int | None) -> str | None:
    return f"{least or 1}-{most or ''}" if least or most else None


def _preemption(partition: Partition, survey: Survey) -> dict[str, Any] | None:
    if survey.settings.get("PreemptType", "").endswith("none") or partition.preempt_mode not in PREEMPTED:
        return None
    found: dict[str, Any] = {"requeued": PREEMPTED[partition.preempt_mode]}
    if partition.grace_s:
        found["grace"] = f"{partition.grace_s}s"
        found["signal"] = "SIGTERM"
    return found
