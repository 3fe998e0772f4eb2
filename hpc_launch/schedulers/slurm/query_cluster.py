"""Asks Slurm what the cluster is: a handful of questions, once, for a person who wants a profile of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from hpc_launch.base.errors import Unreachable
from hpc_launch.schedulers.slurm import parse_cluster, run_command
from hpc_launch.schedulers.slurm.parse_cluster import Association, ClusterNode, Partition, Qos

NAME_TIMEOUT_S = 5.0
"""A user waits for the cluster's name before every job that names no site."""

CONTAINER_OPTIONS = {"pyxis": "--container-image", "edf": "--environment"}
"""The option that a plug-in for containers adds to srun (NVIDIA's pyxis; CSCS's Container Engine)."""


@dataclass(frozen=True)
class Accounting:
    """What the database says of this user; empty where there is none."""

    associations: tuple[Association, ...] = ()
    default_account: str | None = None
    qos: tuple[Qos, ...] = ()

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts that the user may charge, in their order."""
        return tuple(dict.fromkeys(one.account for one in self.associations))

    @property
    def allowed_qos(self) -> tuple[str, ...]:
        """The QOS that the user may ask for, in their order."""
        return tuple(dict.fromkeys(name for one in self.associations for name in one.qos))

    @property
    def default_qos(self) -> str | None:
        """The QOS of a job that asks for none, with the default account: `normal` where nobody set one."""
        mine = [one for one in self.associations if one.account == self.default_account and one.partition is None]
        found = [one.default_qos for one in (mine or self.associations) if one.default_qos]
        return found[0] if found else "normal" if "normal" in self.allowed_qos else None


@dataclass(frozen=True)
class Survey:
    """What Slurm said of itself and of this user."""

    settings: Mapping[str, str]
    partitions: tuple[Partition, ...]
    nodes: tuple[ClusterNode, ...]
    accounting: Accounting | None
    """None where Slurm keeps none, or the database does not answer."""
    srun_plugins: tuple[str, ...]

    @property
    def name(self) -> str:
        """Slurm's name of the cluster."""
        return self.settings.get("ClusterName", "")

    @property
    def version(self) -> str | None:
        """Slurm's release, such as 24.11.5."""
        found = re.search(r"\d+\.\d+(?:\.\d+)?", self.settings.get("SLURM_VERSION", ""))
        return found[0] if found else None

    @property
    def enforced(self) -> frozenset[str]:
        """What the accounting holds jobs to: `associations`, `limits`, `qos`, …"""
        return frozenset(re.findall(r"[a-z]+", self.settings.get("AccountingStorageEnforce", "").lower())) - {"none"}

    def qos(self, name: str | None) -> Qos | None:
        """A QOS by its name."""
        known = self.accounting.qos if self.accounting else ()
        return next((one for one in known if one.name == name), None)


def is_here() -> bool:
    """Whether this host has Slurm's commands."""
    return any(shutil.which(command) for command in ("scontrol", "sinfo", "squeue"))


def cluster_name(timeout_s: float = NAME_TIMEOUT_S) -> str | None:
    """Slurm's name of this cluster. Raises Unreachable where there is no Slurm, or none that answers in time."""
    return parse_cluster.settings(run_command.ask(["scontrol", "show", "config"], timeout_s)).get("ClusterName")


def survey(user: str) -> Survey:
    """All of it. Raises Unreachable where the controller does not answer; a missing database is no fault."""
    # --all: hidden partitions too, for whether a user may use one does not hang on that.
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
        told = run_command.ask(["srun", "--help"])
    except Unreachable:
        return ()
    options = CONTAINER_OPTIONS.items()
    return tuple(kind for kind, option in options if re.search(rf"^\s*{option}\b", told, re.MULTILINE))
