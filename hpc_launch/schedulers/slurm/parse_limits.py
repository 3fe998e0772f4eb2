"""Parse limits of associations, QOS and partitions, and reservations, as sacctmgr and scontrol print them. Pure.

Columns: sacctmgr(1), LIST/SHOW ASSOCIATION and QOS FORMAT OPTIONS. Tested with 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from hpc_launch.job.hostlist import names_or_text
from hpc_launch.schedulers.queue_limits import Limit, Reservation, Scope
from hpc_launch.schedulers.slurm.parse_cluster import Partition, records, seconds
from hpc_launch.schedulers.slurm.parse_values import epoch, number, optional_text

ASSOCIATION = (
    "cluster account user partition qos defaultqos maxwall maxtres maxtrespernode maxjobs maxsubmit grptres grptresmins"
).split()
QOS = (
    "name flags maxwall maxtres mintres maxtrespernode maxtrespu maxtrespa maxjobspu maxsubmitpu grptres grptresmins"
).split()
QOS_OF_ANY_RELEASE = "name flags maxwall maxtres mintres maxjobspu maxsubmitpu".split()

_RESOURCES: tuple[tuple[str, str, Scope], ...] = (
    ("maxtres", "MaxTRES", "job"),
    ("mintres", "MinTRES", "job"),
    ("maxtrespernode", "MaxTRESPerNode", "node"),
    ("maxtrespu", "MaxTRESPU", "user"),
    ("maxtrespa", "MaxTRESPA", "account"),
    ("grptres", "GrpTRES", "group"),
)
_COUNTS = (
    ("maxjobs", "MaxJobs", "jobs"),
    ("maxjobspu", "MaxJobsPU", "jobs"),
    ("maxsubmit", "MaxSubmit", "submitted"),
    ("maxsubmitpu", "MaxSubmitPU", "submitted"),
)
BUDGET = "grptresmins"


def rows(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of `sacctmgr -nP show … format=COLUMNS`. Rows with another number of columns are left out."""
    parts = (line.split("|") for line in text.splitlines())
    return [dict(zip(columns, row, strict=True)) for row in parts if len(row) == len(columns) and row[0]]


def limits_in(owner: str, row: Mapping[str, str], used: Mapping[str, int | None]) -> Iterator[Limit]:
    """The limits in a row of an association or a QOS. `used`: how many jobs the user has, by `jobs` and `submitted`."""
    wall = seconds(row.get("maxwall") or None)
    if wall is not None:
        yield Limit(owner, "MaxWall", "job", "wall", wall)
    for column, name, scope in _RESOURCES:
        for item in row.get(column, "").split(","):
            resource, _, value = item.partition("=")
            amount = _amount(value)
            if resource.strip() and amount is not None:
                yield Limit(owner, name, scope, resource.strip().lower(), amount, least=column == "mintres")
    for column, name, resource in _COUNTS:
        amount = number(row.get(column))
        if amount is not None:
            yield Limit(owner, name, "user", resource, amount, used=used.get(resource))


def _amount(text: str) -> int | None:
    """A count; memory in MiB, which sacctmgr prints as `500G`."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,4})?)([MGTP]?)", text.strip(), re.ASCII)
    if match is None:
        return None
    return int(float(match[1]) * {"G": 1 << 10, "T": 1 << 20, "P": 1 << 30}.get(match[2], 1))


def in_force(found: Iterable[Limit]) -> Iterator[Limit]:
    """Of limits in their order of precedence, the first of each kind (Slurm's page 'Resource Limits', Hierarchy)."""
    seen = set()
    for limit in found:
        kind = (
            limit.name.removesuffix("PU") if limit.resource in ("jobs", "submitted") else limit.name,
            limit.resource,
        )
        if kind not in seen:
            seen.add(kind)
            yield limit


def partition_limits(partition: Partition, flags: Collection[str] = ()) -> Iterator[Limit]:
    """The limits of a partition itself. `flags`: those of the job's QOS, which may lift them."""
    owner = f"partition {partition.name}"
    if partition.max_time is not None and "PartitionTimeLimit" not in flags:
        yield Limit(owner, "MaxTime", "job", "wall", partition.max_time)
    if partition.max_nodes is not None and "PartitionMaxNodes" not in flags:
        yield Limit(owner, "MaxNodes", "job", "node", partition.max_nodes)
    if partition.min_nodes > 1 and "PartitionMinNodes" not in flags:
        yield Limit(owner, "MinNodes", "job", "node", partition.min_nodes, least=True)


def reservations_in(text: str) -> tuple[list[Reservation], list[str]]:
    """Parse `scontrol -o show reservation`, without reservations of licenses alone; names of those not understood."""
    found, unread = [], []
    for row in records(text):
        start, end = epoch(row.get("StartTime", "")), epoch(row.get("EndTime", ""))
        nodes = optional_text(row.get("Nodes"))
        if "ReservationName" not in row or nodes is None:
            continue
        if start is None or end is None:
            unread.append(row["ReservationName"])
            continue
        flags = tuple(flag for flag in (optional_text(row.get("Flags")) or "").split(",") if flag)
        found.append(Reservation(row["ReservationName"], start, end, frozenset(names_or_text(nodes)), flags))
    return found, unread
