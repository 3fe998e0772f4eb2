"""Survey a cluster for `sites learn`: settings, partitions, nodes and accounting."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from hpc_launch.base.errors import Unreachable
from hpc_launch.schedulers.slurm import parse_cluster, run_command
from hpc_launch.schedulers.slurm.parse_cluster import Association, ClusterNode, Partition, Qos

NAME_TIMEOUT_S = 5.0
"""Short, because every job without `site:` waits for this query."""

CONTAINER_OPTIONS = {"pyxis": "--container-image", "edf": "--environment"}
"""The srun option of each container plug-in (NVIDIA's pyxis; CSCS's Container Engine)."""


@dataclass(frozen=True)
class Accounting:
    """This user's associations and QOS; empty if there are none."""

    associations: tuple[Association, ...] = ()
    default_account: str | None = None
    qos: tuple[Qos, ...] = ()

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts that the user may charge, in order."""
        return tuple(dict.fromkeys(one.account for one in self.associations))

    @property
    def allowed_qos(self) -> tuple[str, ...]:
        """The QOS that the user may request, in order."""
        return tuple(dict.fromkeys(name for one in self.associations for name in one.qos))

    @property
    def default_qos(self) -> str | None:
        """The QOS of a job that requests none, under the default account; `normal` if none is set."""
        mine = [one for one in self.associations if one.account == self.default_account and one.partition is None]
        defaults = [one.default_qos for one in (mine or self.associations) if one.default_qos]
        return defaults[0] if defaults else "normal" if "normal" in self.allowed_qos else None


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
        return frozenset(re.findall(r"[a-z]+", self.settings.get("AccountingStorageEnforce", "").lower())) - {"none"}

    def qos(self, name: str | None) -> Qos | None:
        """A QOS by its name."""
        known = self.accounting.qos if self.accounting else ()
        return next((one for one in known if one.name == name), None)


def is_here() -> bool:
    """Whether this host has Slurm's commands."""
    return any(shutil.which(command) for command in ("scontrol", "sinfo", "squeue"))


def cluster_name() -> str | None:
    """Slurm's name of this cluster. Raises Unreachable if Slurm is missing or does not answer in time."""
    return parse_cluster.settings(run_command.ask(["scontrol", "show", "config"], NAME_TIMEOUT_S)).get("ClusterName")


def survey(user: str) -> Survey:
    """Query everything. Raises Unreachable if the controller does not answer; a missing database is not an error."""
    # --all: include hidden partitions, which the user may still be allowed to use.
    settings = parse_cluster.settings(run_command.ask(["scontrol", "show", "config"]))
    partitions = parse_cluster.partitions(run_command.ask(["scontrol", "--all", "--oneliner", "show", "partition"]))
    nodes = parse_cluster.nodes(run_command.ask(["scontrol", "--all", "--oneliner", "show", "node"]))
    with_accounting = settings.get("AccountingStorageType", "").endswith("slurmdbd")
    accounting = _accounting(user) if with_accounting else None
    return Survey(settings, tuple(partitions), tuple(nodes), accounting, _srun_plugins())


def _accounting(user: str) -> Accounting | None:
    head = ["sacctmgr", "--noheader", "--parsable2", "--readonly", "show"]
    try:
        qos = run_command.ask([*head, "qos", f"format={','.join(parse_cluster.QOS_FIELDS)}"])
        mine = run_command.ask([*head, "assoc", f"user={user}", f"format={','.join(parse_cluster.ASSOCIATION_FIELDS)}"])
        default = run_command.ask([*head, "user", user, "format=defaultaccount"])
    except Unreachable:
        return None
    first = next(iter(default.split()), None)
    return Accounting(tuple(parse_cluster.associations(mine)), first, tuple(parse_cluster.qos(qos)))


def _srun_plugins() -> tuple[str, ...]:
    try:
        help_text = run_command.ask(["srun", "--help"])
    except Unreachable:
        return ()
    options = CONTAINER_OPTIONS.items()
    return tuple(kind for kind, option in options if re.search(rf"^\s*{option}\b", help_text, re.MULTILINE))
