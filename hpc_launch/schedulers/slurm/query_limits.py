"""Query the limits that apply to a job of this user, and reservations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from hpc_launch.base.errors import Unreachable
from hpc_launch.base.user_dirs import user
from hpc_launch.schedulers.queue_limits import ArrayRoom, Limit, QueueLimits, Reservations
from hpc_launch.schedulers.slurm import parse_cluster, run_command
from hpc_launch.schedulers.slurm.parse_cluster import Partition
from hpc_launch.schedulers.slurm.parse_limits import (
    ASSOCIATION,
    BUDGET,
    QOS,
    QOS_OF_ANY_RELEASE,
    in_force,
    limits_in,
    partition_limits,
    reservations_in,
    rows,
)

_SHOW = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show")
_PLAIN = re.compile(r"[\w.@+-]+\Z", re.ASCII)
Row = Mapping[str, str]
Jobs = Sequence[tuple[str, str, str]]
"""State, account and QOS of each job of the user."""


def limits(account: str | None, partition: str | None, qos: str | None) -> QueueLimits:
    """The limits of a job with these sbatch options. Raises Unreachable if the controller does not answer."""
    known = parse_cluster.partitions(run_command.ask(["scontrol", "--all", "--oneliner", "show", "partition"]))
    mine = next((one for one in known if (one.name == partition if partition else one.default)), None)
    config = parse_cluster.settings(run_command.ask(["scontrol", "show", "config"]))
    skipped = [] if mine is not None else [f"partition {partition or '(default)'}: scontrol does not list it"]
    found, flags = QueueLimits(), frozenset[str]()
    if not config.get("AccountingStorageType", "").endswith("slurmdbd"):
        skipped.append("account and QOS: Slurm keeps no accounting here")
    else:
        try:
            found, flags = _accounted(config, account, mine, qos)
        except Unreachable as error:
            skipped.append(f"account and QOS: {error}")
    of_partition = partition_limits(mine, flags) if mine is not None else ()
    return QueueLimits((*of_partition, *found.limits), found.problems, found.notes, (*skipped, *found.not_checked))


DEFAULT_ARRAY_SIZE = 1001
"""MaxArraySize where the controller does not say (slurm.conf(5))."""


def array_room(account: str | None, partition: str | None, qos: str | None) -> ArrayRoom:
    """What bounds job arrays with these sbatch options. Raises Unreachable if the controller does not answer."""
    config = parse_cluster.settings(run_command.ask(["scontrol", "show", "config"]))
    size = config.get("MaxArraySize", "")
    command = ["squeue", "--me", "--all", "--array", "--noheader", "--states=PENDING,RUNNING", "--format=%P"]
    queued = run_command.ask(command).split()
    mine = sum(one == partition for one in queued) if partition is not None else len(queued)
    more: int | None = None
    with suppress(Unreachable):
        found = limits(account, partition, qos).limits
        left = [one.amount - one.used for one in found if one.resource == "submitted" and one.used is not None]
        more = max(0, min(left)) if left else None
    return ArrayRoom(int(size) if size.isdecimal() else DEFAULT_ARRAY_SIZE, mine, more)


def reservations(partition: str | None) -> Reservations:
    """All reservations, and the nodes of a partition (None: the default one). Raises Unreachable."""
    found, unread = reservations_in(run_command.ask(["scontrol", "--oneliner", "show", "reservation"]))
    lines = run_command.ask(["sinfo", "--all", "--noheader", "--Node", "--format=%N|%P"]).splitlines()
    nodes = set()
    for name, _, where in (line.strip().partition("|") for line in lines):
        # An asterisk after the name marks the default partition (sinfo(1), %P).
        if where.rstrip("*") in partition.split(",") if partition else where.endswith("*"):
            nodes.add(name)
    return Reservations(frozenset(nodes), tuple(found), tuple(unread))


def _accounted(
    config: Row, account: str | None, partition: Partition | None, qos: str | None
) -> tuple[QueueLimits, frozenset[str]]:
    """The limits of the user's association, of its account and of the QOS, and the QOS's flags. Raises Unreachable."""
    name, cluster = user(), config.get("ClusterName", "")
    enforced = frozenset(re.findall(r"[a-z]+", config.get("AccountingStorageEnforce", "").lower())) - {"none"}
    asked = run_command.ask([*_SHOW, "assoc", f"user={name}", f"format={','.join(ASSOCIATION)}"])
    mine = [row for row in rows(asked, ASSOCIATION) if row["cluster"] == cluster]
    if asked.strip() and not rows(asked, ASSOCIATION):
        raise Unreachable("sacctmgr printed associations in an unknown form")
    if account is None:
        account = next(iter(run_command.ask([*_SHOW, "user", name, "format=defaultaccount"]).split()), None)
    usable = [row for row in mine if row["account"].lower() == (account or "").lower()]
    own = next((row for row in usable if partition is not None and row["partition"] == partition.name), None)
    own = own or next((row for row in usable if not row["partition"]), None)
    if not enforced & {"limits", "safe"} and (own is not None or not enforced):
        shown = ",".join(sorted(enforced)) or "none"
        note = f"Slurm enforces no limits of accounts and QOS (AccountingStorageEnforce={shown})"
        return QueueLimits(notes=(note,)), frozenset()
    if own is None:
        choices = ", ".join(dict.fromkeys(row["account"] for row in mine)) or "none"
        where = f" in partition {partition.name}" if usable and partition is not None else ""
        problem = f"user {name} cannot use account {account}{where}; accounts: {choices}"
        return QueueLimits(problems=(problem,)), frozenset()
    chosen = qos or own["defaultqos"] or "normal"
    known, skipped = _qos_rows()
    flags = frozenset(known.get(chosen, {}).get("flags", "").split(","))
    names = [one for one in (partition.qos if partition is not None else None, chosen) if one]
    names = list(dict.fromkeys(reversed(names) if "OverPartQOS" in flags else names))
    jobs, of = _jobs(), own["account"]
    owners: list[tuple[str, Row, Jobs]] = [
        (f"QOS {one}", known[one], [job for job in jobs if job[2] == one]) for one in names if one in known
    ]
    owners.append((f"account {of}", own, [job for job in jobs if job[1] == of]))
    owners += [(f"account {of} (all users)", row, ()) for row in _account_rows(of, cluster)]
    missing = [f"QOS {one}: sacctmgr does not list it" for one in names if one not in known]
    found = tuple(in_force(_limits(owners)))
    return QueueLimits(found, not_checked=(*skipped, *missing, *_budgets(owners))), flags


def _limits(owners: Sequence[tuple[str, Row, Jobs]]) -> Iterator[Limit]:
    for owner, row, jobs in owners:
        used = {"jobs": sum(state == "RUNNING" for state, _, _ in jobs), "submitted": len(jobs)}
        yield from limits_in(owner, row, used)


def _budgets(owners: Sequence[tuple[str, Row, Jobs]]) -> Iterator[str]:
    for owner, row, _ in owners:
        if row.get(BUDGET):
            yield f"how much of the budget of {owner} is used (GrpTRESMins={row[BUDGET]})"


def _account_rows(account: str, cluster: str) -> list[Row]:
    """The limits that all users of an account share."""
    if not _PLAIN.match(account):
        return []
    columns = ["cluster", "account", "user", "grptres", BUDGET]
    text = run_command.ask([*_SHOW, "assoc", f"account={account}", "user=", f"format={','.join(columns)}"])
    return [row for row in rows(text, columns) if row["cluster"] == cluster and not row["user"]]


def _qos_rows() -> tuple[dict[str, Row], tuple[str, ...]]:
    """All QOS by name, and what could not be asked of them."""
    skipped: tuple[str, ...] = ()
    try:
        columns: Sequence[str] = QOS
        text = run_command.ask([*_SHOW, "qos", f"format={','.join(columns)}"])
    except Unreachable as error:
        skipped = (f"some limits of the QOS: {error}",)
        columns = QOS_OF_ANY_RELEASE
        text = run_command.ask([*_SHOW, "qos", f"format={','.join(columns)}"])
    return {row["name"]: row for row in rows(text, columns)}, skipped


def _jobs() -> Jobs:
    command = ["squeue", "--me", "--all", "--array", "--noheader", "--states=PENDING,RUNNING", "--format=%T|%a|%q"]
    rows = (line.strip().split("|") for line in run_command.ask(command).splitlines())
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]
