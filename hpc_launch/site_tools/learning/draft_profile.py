"""The draft of a profile: what Slurm and the login node said, as the keys of a profile, each with its source. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpc_launch.schedulers.slurm.query_cluster import Survey
from hpc_launch.site_tools.learning.draft_queues import Learned, closed, queues
from hpc_launch.site_tools.learning.hardware import Group, Hardware, Part, levelled, names, parts, vendor
from hpc_launch.site_tools.learning.login_node import Login
from hpc_launch.site_tools.learning.profile_yaml import yaml_text

SOURCE = "learned"
"""What the profile names as its source: the cluster itself was asked."""

MOST_OPTIONS = 24
"""More features than these are places in racks and the like."""


@dataclass
class ProfileDraft:
    """A profile on its way: its keys, the source of each, and what a reader should know besides."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    notes: dict[tuple[str, ...], str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """Lines above the profile."""

    def put(self, value: Any, *path: str, note: str | None = None) -> None:
        """Set a key, with what it was learned from."""
        table = self.data
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table[path[-1]] = value
        if note:
            self.notes[path] = note

    def text(self) -> str:
        """The file."""
        return yaml_text(self.data, self.notes, self.remarks)


@dataclass(frozen=True)
class Asked:
    """Who asks, where and when."""

    user: str
    groups: frozenset[str]
    host: str
    """The login node's full name."""
    day: str


def profile_name(text: str) -> str:
    """A name for a profile out of Slurm's name of the cluster."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:64] or "cluster"


def draft(name: str, survey: Survey, login: Login, asked: Asked) -> ProfileDraft:
    """The profile as far as nobody has to run anything on a node."""
    result = ProfileDraft(name)
    result.remarks = [
        f"Drafted by `hpc-launch sites learn` on {asked.host}, {asked.day}, from what Slurm and this host said.",
        "Behind a key stands what it was learned from. Change what you know better, and say so under `facts:`.",
    ]
    _identity(result, survey, asked)
    usable = _hardware_and_queues(result, survey, asked)
    _options(result, (part.group for found in usable.values() for part in found))
    _account(result, survey)
    _software(result, survey, login)
    return result


def _identity(result: ProfileDraft, survey: Survey, asked: Asked) -> None:
    for key, value in (
        ("name", result.name),
        ("title", f"The Slurm cluster {survey.name}"),
        ("status", "draft"),
        ("source", SOURCE),
        ("as_of", asked.day),
        ("grade", "A"),
        ("contact", asked.user),
    ):
        result.put(value, key)
    result.notes["status",] = "`verified` once `sites learn --smoke` has run jobs"
    domain = asked.host.partition(".")[2]
    probe = {"cluster": survey.name, **({"host": f"*.{domain}"} if domain else {})}
    result.put([probe], "detect", note="scontrol show config: ClusterName")
    login = re.sub(r"\d+", "*", asked.host)
    result.put({"login": [login], "compute": _patterns(survey)}, "hosts", note="names with their numbers left out")
    version = re.match(r"\d+\.\d+", survey.version or "")
    result.put("slurm", "scheduler", "type")
    if version:
        result.put(version[0], "scheduler", "version", note=f"Slurm {survey.version}")


def _patterns(survey: Survey) -> list[str]:
    found = dict.fromkeys(re.sub(r"\d+", "*", node.name) for node in survey.nodes)
    return list(found)[:20]


def _hardware_and_queues(result: ProfileDraft, survey: Survey, asked: Asked) -> dict[str, list[Part]]:
    nodes = levelled(survey.nodes)
    usable: dict[str, list[Part]] = {}
    unknown = []
    for partition in sorted(survey.partitions, key=lambda one: not one.default):
        why = closed(partition, survey, asked.groups)
        found = parts(partition, nodes) if why is None else []
        if found:
            usable[partition.name] = found
        unknown.append(f"partition {partition.name}: {why or 'no nodes'}") if not found else None
    every = [part for found in usable.values() for part in found]
    classes = names(every)
    result.put({}, "node_classes")
    typed = {part.group.hardware for part in every if part.by_type}
    for hardware, name in classes.items():
        _node_class(result, name, hardware, survey, typed=hardware in typed)
    result.put({}, "queues")
    for partition in survey.partitions:
        if partition.name in usable:
            for learned in queues(partition, usable[partition.name], classes, survey):
                _queue(result, learned)
    unknown += [f"what tells {classes[part.group.hardware]} from other nodes" for part in every if part.unclear]
    first = next((one.name for one in survey.partitions if one.default and one.name in usable), None)
    if first is not None:
        result.put(first, "default_queue", note="Slurm's default partition")
    if unknown:
        result.put(list(dict.fromkeys(unknown)), "unknown")
    return usable


def _node_class(result: ProfileDraft, name: str, hardware: Hardware, survey: Survey, *, typed: bool) -> None:
    path = ("node_classes", name)
    result.put(hardware.cpus, *path, "cpus", note="scontrol show node: CPUs that jobs can have")
    if hardware.threads_per_core > 1:
        result.put(hardware.threads_per_core, *path, "threads_per_core")
    if hardware.memory:
        note = "RealMemory, less what Slurm keeps; of the node with the least"
        result.put(f"{hardware.memory}M", *path, "memory", note=note)
    if hardware.arch in {"x86_64", "aarch64"}:
        result.put(hardware.arch, *path, "arch")
    if not hardware.gpus:
        return
    result.put(hardware.gpus, *path, "gpus", note="Gres")
    if hardware.gpu_type:
        result.put(hardware.gpu_type, *path, "gpu_type")
    if (made := vendor(hardware.gpu_type)) is not None:
        result.put(made, *path, "gpu_vendor", note="by the type's name")
    select = survey.settings.get("SelectType", "")
    dialect = "gpus-per-node" if select.endswith("cons_tres") else "gres"
    if typed:
        dialect += "-type"
    result.put(dialect, *path, "gpu_request", note=f"SelectType={select}")


def _queue(result: ProfileDraft, learned: Learned) -> None:
    for key, value in learned.data.items():
        result.put(value, "queues", learned.name, key, note=learned.notes.get(key))


def _options(result: ProfileDraft, groups: Iterable[Group]) -> None:
    """Features that only some nodes of a kind have are what a job may ask for."""
    features = sorted(frozenset().union(*(group.some for group in groups)))
    usual = [name for name in features if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)]
    if usual and len(usual) <= MOST_OPTIONS:
        found = {name: {"about": "a feature of some nodes", "constraint": name} for name in usual}
        result.put(found, "options", note="AvailableFeatures")


def _account(result: ProfileDraft, survey: Survey) -> None:
    accounting = survey.accounting
    if accounting is None or "associations" not in survey.enforced:
        return
    command = "sacctmgr show assoc user=$USER format=account"
    required = accounting.default_account is None
    result.put({"required": required, "find": command}, "account", note="AccountingStorageEnforce")


def _software(result: ProfileDraft, survey: Survey, login: Login) -> None:
    runtimes = [*survey.srun_plugins, *login.runtimes]
    runtime = next(iter(runtimes), "none")
    said = f"found: {', '.join(runtimes)}" if runtimes else "no runtime was found on this host"
    result.put(runtime, "containers", "runtime", note=said)
    stacks = {re.sub(r"[^A-Za-z0-9._-]+", "-", name): name for name in login.torch_modules}
    if stacks:
        found = {key: {"environment": {"modules": [name]}} for key, name in stacks.items()}
        note = f"module avail ({login.module_system}); a job asks with `environment: {{stack: NAME}}`"
        result.put(found, "stacks", note=note)
    others = [name for name in login.modules if name not in login.torch_modules]
    result.remarks.append(f"Modules: {login.module_system}{f'; {chr(44).join(others)}' if others else ''}.")
    for name, variable in login.folders.items():
        result.put("${env." + variable + "}", "paths", name, note=f"${variable} on the login node")


def can_do(survey: Survey) -> Mapping[str, bool]:
    """What this Slurm can do that a user of hpc-launch may want to know of."""
    return {
        "GPUs by --gpus-per-node": survey.settings.get("SelectType", "").endswith("cons_tres"),
        "memory is counted": "MEMORY" in survey.settings.get("SelectTypeParameters", "").upper(),
        "accounting": survey.accounting is not None,
        "limits are enforced": bool(survey.enforced & {"limits", "safe"}),
        "jobs are requeued by default": survey.settings.get("JobRequeue") == "1",
        "preemption": not survey.settings.get("PreemptType", "preempt/none").endswith("none"),
        "containers through srun": bool(survey.srun_plugins),
    }
