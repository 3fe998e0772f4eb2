"""Query limits of associations, QOS and partitions, the budget of an account, and reservations.

Tested with 22.05. Of budgets, `scontrol show
assoc_mgr` prints `GrpTRESMins=gres/gpu=6000(12)`: limit and use in minutes, `N` without a limit. sacctmgr knows the
limit but not its use, and sshare prints no limit. The balance is unknown where a site keeps its budgets elsewhere or
hides these records (PrivateData).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from hpc_launch.base.errors import Unreachable
from hpc_launch.base.files import user
from hpc_launch.job.hostlist import names_or_text
from hpc_launch.schedulers.scheduler import ArrayRoom, Balance, Limit, QueueLimits, Reservation, Reservations, Scope
from hpc_launch.schedulers.slurm import query_cluster, run_command
from hpc_launch.schedulers.slurm.parse_jobs import epoch, number, optional_text
from hpc_launch.schedulers.slurm.query_cluster import Partition, Row, enforced, records, rows, seconds
from hpc_launch.schedulers.slurm.run_command import ask_accounting

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


_PLAIN = re.compile(r"[\w.@+-]+\Z", re.ASCII)
Jobs = Sequence[tuple[str, str, str]]
"""State, account and QOS of each job of the user."""


def limits(account: str | None, partition: str | None, qos: str | None) -> QueueLimits:
    """The limits of a job with these sbatch options. Raises Unreachable if the controller does not answer."""
    known = query_cluster.ask_partitions()
    mine = next((one for one in known if (one.name == partition if partition else one.default)), None)
    config = query_cluster.ask_settings()
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
    config = query_cluster.ask_settings()
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
    name, kinds = user(), enforced(config)
    shown = ",".join(sorted(kinds)) or "none"
    free = QueueLimits(notes=(f"Slurm enforces no limits of accounts and QOS (AccountingStorageEnforce={shown})",))
    if not kinds:
        return free, frozenset()
    mine = query_cluster.ask_associations(config, name)
    account = account or query_cluster.ask_default_account(name)
    usable = [row for row in mine if row["account"].lower() == (account or "").lower()]
    own = next((row for row in usable if partition is not None and row["partition"] == partition.name), None)
    own = own or next((row for row in usable if not row["partition"]), None)
    if not kinds & {"limits", "safe"} and own is not None:
        return free, frozenset()
    if own is None:
        choices = ", ".join(dict.fromkeys(row["account"] for row in mine)) or "none"
        where = f" in partition {partition.name}" if usable and partition is not None else ""
        problem = f"user {name} cannot use account {account}{where}; accounts: {choices}"
        return QueueLimits(problems=(problem,)), frozenset()
    chosen = qos or own["defaultqos"] or "normal"
    known = query_cluster.ask_qos()
    flags = frozenset(known.get(chosen, {}).get("flags", "").split(","))
    names = [one for one in (partition.qos if partition is not None else None, chosen) if one]
    names = list(dict.fromkeys(reversed(names) if "OverPartQOS" in flags else names))
    jobs, of = _jobs(), own["account"]
    owners: list[tuple[str, Row, Jobs]] = [
        (f"QOS {one}", known[one], [job for job in jobs if job[2] == one]) for one in names if one in known
    ]
    owners.append((f"account {of}", own, [job for job in jobs if job[1] == of]))
    owners += [(f"account {of} (all users)", row, ()) for row in _account_rows(of, own["cluster"])]
    missing = [f"QOS {one}: sacctmgr does not list it" for one in names if one not in known]
    found = tuple(in_force(_limits(owners)))
    budgets = [(owner, row[BUDGET]) for owner, row, _ in owners if row.get(BUDGET)]
    used = [f"how much of the budget of {owner} is used (GrpTRESMins={budget})" for owner, budget in budgets]
    return QueueLimits(found, not_checked=(*missing, *used)), flags


def _limits(owners: Sequence[tuple[str, Row, Jobs]]) -> Iterator[Limit]:
    for owner, row, jobs in owners:
        used = {"jobs": sum(state == "RUNNING" for state, _, _ in jobs), "submitted": len(jobs)}
        yield from limits_in(owner, row, used)


def _account_rows(account: str, cluster: str) -> list[Row]:
    """The limits that all users of an account share."""
    if not _PLAIN.match(account):
        return []
    columns = ["cluster", "account", "user", "grptres", BUDGET]
    text = ask_accounting("assoc", f"account={account}", "user=", columns=columns)
    return [row for row in rows(text, columns) if row["cluster"] == cluster and not row["user"]]


def _jobs() -> Jobs:
    command = ["squeue", "--me", "--all", "--array", "--noheader", "--states=PENDING,RUNNING", "--format=%T|%a|%q"]
    rows = (line.strip().split("|") for line in run_command.ask(command).splitlines())
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


_BUDGETED = ("gres/gpu", "billing", "node", "cpu")
"""Of several budgets the first counts: Slurm enforces each of them."""
_BUDGET = re.compile(r"([\w/]+)=(\d{1,15})\((\d{1,15})\)", re.ASCII)


def balance(account: str | None) -> Balance | None:
    """The budget of the account (None: the user's default one). None where Slurm reports none."""
    try:
        if account is None:
            mine = query_cluster.records(_records(f"users={user()}"))
            account = next((optional_text(row.get("Account")) for row in mine if row.get("DefAssoc") == "Yes"), None)
        if account is None or not _PLAIN.match(account):
            return None
        return parse_balance(account, _records(f"accounts={account}"))
    except Unreachable:
        return None


def _records(which: str) -> str:
    return run_command.ask(["scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc", which])


def parse_balance(account: str, text: str) -> Balance | None:
    """The budget that all users of the account share, else the user's own."""
    rows = [row for row in query_cluster.records(text) if row.get("Account", "").lower() == account.lower()]
    shared = [row for row in rows if not row.get("UserName")]
    own = [row for row in rows if row.get("UserName", "").partition("(")[0] == user()]
    for row in (*shared, *own):
        found = {name: (int(limit), int(used)) for name, limit, used in _BUDGET.findall(row.get("GrpTRESMins", ""))}
        resource = next((name for name in _BUDGETED if name in found), None)
        if resource is not None:
            limit, used = found[resource]
            return Balance(account, resource, limit / 60, used / 60)
    return None
