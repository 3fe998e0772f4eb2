"""Ask scontrol and sacctmgr for the cluster: settings, partitions, nodes, QOS and accounts; and parse what they print.

Any key may be missing, because releases differ (tested with 22.05, 24.11 and 26.05).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hpc_launch.base.errors import Unreachable
from hpc_launch.job.units import parse_time
from hpc_launch.schedulers.slurm import run_command
from hpc_launch.schedulers.slurm.parse_jobs import number, optional_text
from hpc_launch.schedulers.slurm.run_command import ask_accounting

_KEY = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")
_ENDLESS = {"UNLIMITED", "INFINITE", "NONE"}


@dataclass(frozen=True)
class GpuCount:
    """GPUs of one type in a node; `type` is None if Slurm's configuration names none."""

    type: str | None
    count: int


@dataclass(frozen=True)
class ClusterNode:
    """A node in Slurm's units. Memory is in MiB."""

    name: str
    cpus: int
    threads_per_core: int
    memory: int | None
    arch: str | None
    gpus: tuple[GpuCount, ...]
    features: frozenset[str]
    partitions: tuple[str, ...]


@dataclass(frozen=True)
class Partition:
    """A partition. Times in seconds, memory in MiB; None is 'no limit' or 'not set'. An empty list allows all."""

    name: str
    up: bool
    default: bool
    root_only: bool
    max_time: int | None
    default_time: int | None
    min_nodes: int
    max_nodes: int | None
    max_cpus_per_node: int | None
    max_memory_per_node: int | None
    groups: tuple[str, ...]
    accounts: tuple[str, ...]
    denied_accounts: tuple[str, ...]
    qos_allowed: tuple[str, ...]
    qos_denied: tuple[str, ...]
    qos: str | None
    exclusive: bool
    preempt_mode: str
    grace_s: int
    reservation_only: bool


def settings(text: str) -> dict[str, str]:
    """Parse `scontrol show config`."""
    lines = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in lines if equals}


def records(text: str) -> Iterator[dict[str, str]]:
    """The rows of `scontrol -o show …`. The first value of a key counts: free text (`Reason`) comes last."""
    for line in text.splitlines():
        keys = list(_KEY.finditer(line))
        row: dict[str, str] = {}
        for at, match in enumerate(keys):
            end = keys[at + 1].start() if at + 1 < len(keys) else len(line)
            row.setdefault(match[1], line[match.end() : end].strip())
        if row:
            yield row


def nodes(text: str) -> list[ClusterNode]:
    """Parse `scontrol -o show node`, without nodes in State=FUTURE."""
    parsed = []
    for row in records(text):
        cpus = number(row.get("CPUEfctv")) or number(row.get("CPUTot"))
        if "NodeName" not in row or not cpus or "FUTURE" in row.get("State", ""):
            continue
        memory = number(row.get("RealMemory"))
        reserved = number(row.get("MemSpecLimit")) or 0
        parsed.append(
            ClusterNode(
                name=row["NodeName"],
                cpus=cpus,
                threads_per_core=number(row.get("ThreadsPerCore")) or 1,
                memory=memory - reserved if memory and memory > 1 else None,  # 1 is Slurm's default for not set
                arch=optional_text(row.get("Arch")),
                gpus=gpus(row.get("Gres", "")),
                features=frozenset(_names(row.get("AvailableFeatures"))),
                partitions=_names(row.get("Partitions")),
            )
        )
    return parsed


def gpus(gres: str) -> tuple[GpuCount, ...]:
    """The GPUs of `gpu:a100:4(S:0-1),nvme:1`, by descending count."""
    counts: dict[str | None, int] = {}
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        parts = item.strip().split(":")
        count = number(parts[-1]) if len(parts) > 1 else 1
        if parts[0] == "gpu" and count:
            kind = parts[1] if len(parts) > 2 else None
            counts[kind] = counts.get(kind, 0) + count
    return tuple(GpuCount(kind, count) for kind, count in sorted(counts.items(), key=lambda pair: -pair[1]))


def partitions(text: str) -> list[Partition]:
    """Parse `scontrol -o show partition`."""
    parsed = []
    for row in records(text):
        if "PartitionName" not in row:
            continue
        accounts = _names(row.get("AllowAccounts"))
        parsed.append(
            Partition(
                name=row["PartitionName"],
                up=row.get("State", "UP").upper() == "UP",
                default=row.get("Default") == "YES",
                root_only=row.get("RootOnly") == "YES",
                max_time=seconds(row.get("MaxTime")),
                default_time=seconds(row.get("DefaultTime")),
                min_nodes=max(number(row.get("MinNodes")) or 0, 1),
                max_nodes=number(row.get("MaxNodes")),
                max_cpus_per_node=number(row.get("MaxCPUsPerNode")),
                max_memory_per_node=number(row.get("MaxMemPerNode")),
                groups=_names(row.get("AllowGroups")),
                accounts=accounts,
                denied_accounts=_names(row.get("DenyAccounts")),
                qos_allowed=_names(row.get("AllowQos")),
                qos_denied=_names(row.get("DenyQos")),
                qos=optional_text(row.get("QoS")),
                # 26.05 prints this setting as `Exclusive=NODE`.
                exclusive=row.get("OverSubscribe") == "EXCLUSIVE" or row.get("Exclusive") == "NODE",
                preempt_mode=row.get("PreemptMode", "OFF").upper(),
                grace_s=number(row.get("GraceTime")) or 0,
                reservation_only=row.get("ReqResv") == "YES",
            )
        )
    return parsed


ASSOCIATION = (
    "cluster account user partition qos defaultqos maxwall maxtres maxtrespernode maxjobs maxsubmit grptres grptresmins"
).split()
QOS = (
    "name flags maxwall maxtres mintres maxtrespernode maxtrespu maxtrespa maxjobspu maxsubmitpu grptres grptresmins"
).split()
"""Columns of sacctmgr(1), LIST/SHOW ASSOCIATION and QOS FORMAT OPTIONS."""
Row = Mapping[str, str]


def rows(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows that it printed. Those with another number of columns are left out."""
    parts = (line.split("|") for line in text.splitlines())
    return [dict(zip(columns, row, strict=True)) for row in parts if len(row) == len(columns) and row[0]]


def seconds(text: str | None) -> int | None:
    """A time limit in seconds; None if there is none."""
    if text is None or text.strip().upper() in _ENDLESS:
        return None
    try:
        return parse_time(text)
    except ValueError:
        return None


def resources(text: str) -> dict[str, int]:
    """The counts in a list of trackable resources (`node`, `gres/gpu`, `cpu`)."""
    pairs = (item.partition("=") for item in text.split(","))
    return {name.strip(): count for name, _, value in pairs if (count := number(value)) is not None}


def _names(text: str | None) -> tuple[str, ...]:
    """The names in a list; empty for ALL, which does not restrict."""
    names = tuple(name.strip() for name in (optional_text(text) or "").split(",") if name.strip())
    return () if "ALL" in names else names


NAME_TIMEOUT_S = 5.0
"""Short, because every job without `site:` waits for this query."""

CONTAINER_OPTIONS = {"pyxis": "--container-image", "edf": "--environment"}
"""The srun option of each container plug-in (NVIDIA's pyxis; CSCS's Container Engine)."""


@dataclass(frozen=True)
class Accounting:
    """This user's associations with the cluster, and all QOS by their names, as sacctmgr prints them."""

    associations: Sequence[Row]
    default_account: str | None
    qos: Mapping[str, Row]

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts that the user may charge, in order."""
        return tuple(dict.fromkeys(one["account"] for one in self.associations))

    @property
    def allowed_qos(self) -> tuple[str, ...]:
        """The QOS that the user may request, in order."""
        return tuple(dict.fromkeys(name for one in self.associations for name in _names(one["qos"])))

    @property
    def default_qos(self) -> str | None:
        """The QOS of a job that requests none, under the default account; `normal` if none is set."""
        mine = [one for one in self.associations if one["account"] == self.default_account and not one["partition"]]
        defaults = [one["defaultqos"] for one in (mine or self.associations) if one["defaultqos"]]
        return next(iter(defaults), "normal" if "normal" in self.allowed_qos else None)


@dataclass(frozen=True)
class Survey:
    """Slurm's configuration, and this user's accounting."""

    settings: Mapping[str, str]
    partitions: tuple[Partition, ...]
    nodes: tuple[ClusterNode, ...]
    accounting: Accounting | None
    """None if Slurm has no accounting or the database does not answer."""
    srun_plugins: tuple[str, ...]

    @property
    def name(self) -> str:
        """Slurm's name of the cluster."""
        return self.settings.get("ClusterName", "")

    @property
    def version(self) -> str | None:
        """Slurm's release, such as 24.11.5."""
        match = re.search(r"\d+\.\d+(?:\.\d+)?", self.settings.get("SLURM_VERSION", ""))
        return match[0] if match else None

    @property
    def enforced(self) -> frozenset[str]:
        """AccountingStorageEnforce: `associations`, `limits`, `qos`, …"""
        return enforced(self.settings)

    def qos(self, name: str | None) -> Row | None:
        """A QOS by its name."""
        return self.accounting.qos.get(name or "") if self.accounting else None


def enforced(config: Mapping[str, str]) -> frozenset[str]:
    """Which limits Slurm enforces, by AccountingStorageEnforce."""
    return frozenset(re.findall(r"[a-z]+", config.get("AccountingStorageEnforce", "").lower())) - {"none"}


def is_here() -> bool:
    """Whether this host has Slurm's commands."""
    return any(shutil.which(command) for command in ("scontrol", "sinfo", "squeue"))


def ask_settings(timeout_s: float = run_command.TIMEOUT_S) -> dict[str, str]:
    """Slurm's settings. Raises Unreachable."""
    return settings(run_command.ask(["scontrol", "show", "config"], timeout_s))


def ask_partitions() -> list[Partition]:
    """All partitions, also hidden ones, which the user may still be allowed to use. Raises Unreachable."""
    return partitions(run_command.ask(["scontrol", "--all", "--oneliner", "show", "partition"]))


def cluster_name() -> str | None:
    """Slurm's name of this cluster. Raises Unreachable if Slurm is missing or does not answer in time."""
    return ask_settings(NAME_TIMEOUT_S).get("ClusterName")


def survey(user: str) -> Survey:
    """Query everything. Raises Unreachable if the controller does not answer; a missing database is not an error."""
    config, known = ask_settings(), ask_partitions()
    members = nodes(run_command.ask(["scontrol", "--all", "--oneliner", "show", "node"]))
    accounting = None
    if config.get("AccountingStorageType", "").endswith("slurmdbd"):
        with suppress(Unreachable):
            accounting = Accounting(ask_associations(config, user), ask_default_account(user), ask_qos())
    help_text = ""
    with suppress(Unreachable):
        help_text = run_command.ask(["srun", "--help"])
    options = CONTAINER_OPTIONS.items()
    plugins = (kind for kind, option in options if re.search(rf"^\s*{option}\b", help_text, re.MULTILINE))
    return Survey(config, tuple(known), tuple(members), accounting, tuple(plugins))


def ask_associations(config: Row, user: str) -> list[Row]:
    """The associations of a user with the cluster. Raises Unreachable."""
    asked = ask_accounting("assoc", f"user={user}", columns=ASSOCIATION)
    found = rows(asked, ASSOCIATION)
    if asked.strip() and not found:
        raise Unreachable("sacctmgr printed associations in an unknown form")
    return [row for row in found if row["cluster"] == config.get("ClusterName", "")]


def ask_default_account(user: str) -> str | None:
    """The account that a user charges by default. Raises Unreachable."""
    return next(iter(ask_accounting("user", user, columns=["defaultaccount"]).split()), None)


def ask_qos() -> dict[str, Row]:
    """All QOS by their names. Raises Unreachable."""
    return {row["name"]: row for row in rows(ask_accounting("qos", columns=QOS), QOS)}
