"""Draft of a profile: information from Slurm and the login node as profile keys, each with its source. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpc_launch.base.errors import UsageError
from hpc_launch.job.document import yaml_text
from hpc_launch.schedulers.slurm.query_cluster import Survey
from hpc_launch.site_tools.draft_queues import (
    Group,
    Hardware,
    Part,
    level_memory,
    names,
    no_access_reason,
    parts,
    queues,
    vendor,
)
from hpc_launch.site_tools.host_facts import HostGpu, LoginNode, common

SOURCE = "learned"
"""Source of the facts in a learned profile."""

MAX_OPTIONS = 24
"""More features than this are usually locations such as racks."""


@dataclass(frozen=True)
class LearnContext:
    """User, host and date."""

    user: str
    groups: frozenset[str]
    host: str
    """Full name of the login node."""
    day: str


@dataclass
class ProfileDraft:
    """A draft: its keys, the source of each, and remarks for readers."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    notes: dict[tuple[str, ...], str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """Comment lines above the profile."""

    def put(self, value: Any, *path: str, note: str | None = None) -> None:
        """Set a key and its source. None is unknown: the key is left out."""
        if value is None:
            return
        table = self.data
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table[path[-1]] = value
        if note:
            self.notes[path] = note

    def put_identity(self, title: str, context: LearnContext) -> None:
        """Set what every draft begins with."""
        self.data |= {
            "name": self.name,
            "title": title,
            "status": "draft",
            "source": SOURCE,
            "as_of": context.day,
            "grade": "A",
            "contact": context.user,
        }

    def put_node_class(self, name: str, hardware: Hardware, notes: Mapping[str, str]) -> None:
        """Set what the hardware of a class of nodes is. `notes`: the source of each key."""
        values = {
            "cpus": hardware.cpus,
            "threads_per_core": hardware.threads_per_core if hardware.threads_per_core > 1 else None,
            "memory": f"{hardware.memory}M" if hardware.memory else None,
            "arch": hardware.arch if hardware.arch in {"x86_64", "aarch64"} else None,
            "gpus": hardware.gpus or None,
            "gpu_type": hardware.gpu_type,
        }
        for key, value in values.items():
            self.put(value, "node_classes", name, key, note=notes.get(key))

    def put_gpus(self, gpus: Sequence[HostGpu], name: str, note: str) -> None:
        """Set memory and vendor of the GPUs of a class of nodes."""
        memory = min(gpu.memory for gpu in gpus)
        self.put(f"{memory}M" if memory else None, "node_classes", name, "gpu_memory", note=note)
        self.put(common(gpu.vendor for gpu in gpus), "node_classes", name, "gpu_vendor", note=note)

    def put_fabric(self, kind: str | None) -> None:
        """Set the family of the network, if it is known."""
        self.put(kind, "fabric", "kind", note=f"`extends: [{kind}]` adds the usual settings for this network")

    def text(self) -> str:
        """The file's text."""
        return yaml_text(self.data, self.notes, self.remarks)


def profile_name(name: str | None, found: str) -> str:
    """The name of a profile, by default from a cluster's or a file's. Raises UsageError for an invalid one."""
    valid = re.sub(r"[^A-Za-z0-9._-]+", "-", found if name is None else name).strip("-._")[:64]
    if name is not None and name != valid:
        raise UsageError(f"{name!r} is not a valid profile name", "use letters, digits, dots, dashes and underscores")
    return valid or "cluster"


def draft(name: str, survey: Survey, login: LoginNode, context: LearnContext) -> ProfileDraft:
    """Draft the profile without running anything on a node."""
    result = ProfileDraft(name)
    result.remarks = [
        f"Drafted by `hpc-launch sites learn` on {context.host}, {context.day}, from Slurm and this host.",
        "Comments name the source of each key. Correct what you know better, and note it under `facts:`.",
    ]
    _identity(result, survey, context)
    accessible = _hardware_and_queues(result, survey, context)
    topology = survey.settings.get("TopologyPlugin", "")
    if topology.endswith(("/tree", "/block")) and "AsNodeRank" not in survey.settings.get("TopologyParam", ""):
        result.put("switches", "launch", "node_order", note=f"TopologyPlugin={topology}")
    _options(result, (part.group for found in accessible.values() for part in found))
    if survey.accounting is not None and "associations" in survey.enforced:
        command, required = "sacctmgr show assoc user=$USER format=account", survey.accounting.default_account is None
        result.put({"required": required, "find": command}, "account", note="AccountingStorageEnforce")
    _software(result, survey, login)
    return result


def _identity(result: ProfileDraft, survey: Survey, context: LearnContext) -> None:
    result.put_identity(f"The Slurm cluster {survey.name}", context)
    result.notes["status",] = "`verified` once `sites learn --smoke` has run jobs"
    domain = context.host.partition(".")[2]
    probe = {"cluster": survey.name, **({"host": f"*.{domain}"} if domain else {})}
    result.put([probe], "detect", note="scontrol show config: ClusterName")
    login = re.sub(r"\d+", "*", context.host)
    compute = list(dict.fromkeys(re.sub(r"\d+", "*", node.name) for node in survey.nodes))[:20]
    result.put({"login": [login], "compute": compute}, "hosts", note="host names with `*` for numbers")
    version = re.match(r"\d+\.\d+", survey.version or "")
    result.put("slurm", "scheduler", "type")
    result.put(version and version[0], "scheduler", "version", note=f"Slurm {survey.version}")


def _hardware_and_queues(result: ProfileDraft, survey: Survey, context: LearnContext) -> dict[str, list[Part]]:
    nodes = level_memory(survey.nodes)
    accessible: dict[str, list[Part]] = {}
    unknown = []
    for partition in sorted(survey.partitions, key=lambda one: not one.default):
        why = no_access_reason(partition, survey, context.groups)
        found = parts(partition, nodes) if why is None else []
        if found:
            accessible[partition.name] = found
        unknown.append(f"partition {partition.name}: {why or 'no nodes'}") if not found else None
    all_parts = [part for found in accessible.values() for part in found]
    classes = names(all_parts)
    result.put({}, "node_classes")
    typed = {part.group.hardware for part in all_parts if part.by_type}
    for hardware, name in classes.items():
        _node_class(result, name, hardware, survey, typed=hardware in typed)
    result.put({}, "queues")
    for partition in survey.partitions:
        if partition.name in accessible:
            for name, facts in queues(partition, accessible[partition.name], classes, survey):
                for key, value, note in facts:
                    result.put(value, "queues", name, key, note=note)
    unknown += [
        f"how to distinguish {classes[part.group.hardware]} from other nodes" for part in all_parts if part.unclear
    ]
    first = next((one.name for one in survey.partitions if one.default and one.name in accessible), None)
    result.put(first, "default_queue", note="Slurm's default partition")
    result.put(list(dict.fromkeys(unknown)) or None, "unknown")
    return accessible


def _node_class(result: ProfileDraft, name: str, hardware: Hardware, survey: Survey, *, typed: bool) -> None:
    notes = {
        "cpus": "scontrol show node: CPUs available to jobs",
        "memory": "RealMemory of the smallest node, without what Slurm reserves",
        "gpus": "Gres",
    }
    result.put_node_class(name, hardware, notes)
    if hardware.gpus:
        path = ("node_classes", name)
        result.put(vendor(hardware.gpu_type), *path, "gpu_vendor", note="by the GPU type's name")
        select = survey.settings.get("SelectType", "")
        dialect = "gpus-per-node" if select.endswith("cons_tres") else "gres"
        result.put(f"{dialect}-type" if typed else dialect, *path, "gpu_request", note=f"SelectType={select}")


def _options(result: ProfileDraft, groups: Iterable[Group]) -> None:
    """Options for features that only some nodes of a type have."""
    features = sorted(frozenset().union(*(group.some for group in groups)))
    feature_names = [name for name in features if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)]
    if feature_names and len(feature_names) <= MAX_OPTIONS:
        found = {name: {"about": "feature of some nodes", "constraint": name} for name in feature_names}
        result.put(found, "options", note="AvailableFeatures")


def _software(result: ProfileDraft, survey: Survey, login: LoginNode) -> None:
    runtimes = [*survey.srun_plugins, *login.runtimes]
    runtime = next(iter(runtimes), "none")
    note = f"found: {', '.join(runtimes)}" if runtimes else "no container runtime found on this host"
    result.put(runtime, "containers", "runtime", note=note)
    torch_modules = [name for name in login.modules if re.search("torch", name, re.IGNORECASE)]
    stacks = {re.sub(r"[^A-Za-z0-9._-]+", "-", one): {"environment": {"modules": [one]}} for one in torch_modules}
    note = f"module avail ({login.module_system}); select with `environment: {{stack: NAME}}`"
    result.put(stacks or None, "stacks", note=note)
    others = ",".join(name for name in login.modules if name not in torch_modules)
    result.remarks.append(f"Modules: {login.module_system}{f'; {others}' if others else ''}.")
    for name, variable in login.folders.items():
        result.put("${env." + variable + "}", "paths", name, note=f"${variable} on the login node")
