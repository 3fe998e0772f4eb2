"""Plans and hosts from a few options, without a job file or a site profile: `config slurm`, `launcher`, `hostfile`.

The options describe a job and a cluster that has exactly what they request; plan and script are those of any other job.
Nothing is checked against a real cluster.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any

from msgspec import Meta, Struct

from hpc_launch.base.findings import Finding, FindingCode, Place, errors
from hpc_launch.job.document import KeyPath
from hpc_launch.job.hostlist import expand_slots
from hpc_launch.job.job import JobSpec
from hpc_launch.job.merge import Layer, merge
from hpc_launch.job.reader import check, long_form, read
from hpc_launch.plan.build_plan import build
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.sites.network import JobHost
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.resolved import Resolved
from hpc_launch.sites.this_machine import names as names_here

CPUS_PER_GPU = 8
_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*\Z")
_OPTIONS = {"time": "--time-limit", "launcher": "--use-deepspeed", "args": "--"}
"""Keys of a job file whose option has another name."""


class JobOptions(Struct, frozen=True, kw_only=True):
    """What both scripts ask for."""

    script: str
    """The training's Python file, absolute or relative to this folder. Default: train.py, or else src/train.py."""
    config: str | None = None
    """The training's own configuration: passed on as its argument --config."""
    gpus_per_node: Annotated[int, Meta(ge=1)] = 1
    """GPUs per node: one process each."""
    cpus_per_node: Annotated[int | None, Meta(ge=1)] = None
    """CPUs per node. Default: 8 per GPU."""
    use_deepspeed: bool = False
    """Start with DeepSpeed's launcher instead of torchrun."""
    arguments: Annotated[tuple[str, ...], Meta(extra={"rest": True})] = ()
    """The training's own arguments."""

    def job(self) -> dict[str, Any]:
        """The equivalent job file; keys without a value are left out later."""
        return {
            "name": "train",
            "gpus_per_node": self.gpus_per_node,
            "cpus_per_node": self.cpus_per_node or CPUS_PER_GPU * self.gpus_per_node,
            "launcher": "deepspeed" if self.use_deepspeed else "torchrun",
            "script": self.script,
            "args": [*(["--config", self.config] if self.config else []), *self.arguments],
        }

    def faults(self) -> list[Finding]:
        """What no job file could say."""
        return []


class Hostfile(Struct, frozen=True, kw_only=True):
    """A request for a hostfile."""

    hosts: str | None = None
    """The nodes as a Slurm host list, with slots where they differ: n[1-4], or n[1-2]:8,n3:4. Default: the nodes of the
    Slurm job around it."""
    slots: Annotated[int, Meta(ge=1)] = 1
    """Processes per node: its GPUs."""
    suffix: str = ""
    """Appended to each name, if the fast network has its own names."""


class SbatchScript(JobOptions, frozen=True, kw_only=True):
    """A request for an sbatch script."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "train"
    """The job's name."""
    nodes: Annotated[int, Meta(ge=1)] = 1
    """Number of nodes."""
    memory: str | None = None
    """Memory per node, such as 256G; 0: all of it. Default: Slurm's."""
    time_limit: str = "01:00:00"
    """Time limit as in Slurm: 48:00:00; a bare number is minutes."""
    partition: str | None = None
    """The partition. Default: Slurm's."""
    account: str | None = None
    """The account to charge."""
    modules: list[str] = []
    """An environment module to load; can be repeated."""
    conda: str | None = None
    """A conda environment to activate."""
    venv: str | None = None
    """The folder of a virtual environment to activate."""

    def job(self) -> dict[str, Any]:
        """The equivalent job file."""
        same = {key: getattr(self, key) for key in ("name", "account", "nodes", "memory")}
        software = {"modules": list(self.modules), "conda": self.conda, "venv": self.venv}
        return {**JobOptions.job(self), **same, "time": self.time_limit, "environment": software}


class NodeScript(JobOptions, frozen=True, kw_only=True):
    """A request for the script of one node."""

    nodes: Annotated[int, Meta(ge=1)] = 1
    """Number of nodes."""
    master_addr: str | None = None
    """The first node's name or address, as the other nodes reach it."""
    master_port: Annotated[int, Meta(ge=1024, le=32767)] = 29500
    """A free port on the first node, below 32768: outgoing connections use the ports above."""
    node_rank: Annotated[int, Meta(ge=0)] = 0
    """This node's rank, from 0; rank 0 is the node of --master-addr."""
    python: str = "python3"
    """The Python interpreter of the training."""

    @property
    def hosts(self) -> list[str]:
        """Names for the nodes: only the first one is known, and needed."""
        return [self.master_addr or "127.0.0.1", *(f"node{rank}" for rank in range(1, self.nodes))]

    def job(self) -> dict[str, Any]:
        """The equivalent job file."""
        return {**JobOptions.job(self), "nodes": self.nodes, "time": 60, "environment": {"python": self.python}}

    def faults(self) -> list[Finding]:
        """HL661 and HL662: a rank that no node has, or an address that the nodes cannot use."""
        if self.node_rank >= self.nodes:
            message = f"invalid node rank {self.node_rank} for {self.nodes} nodes"
            hint = f"use 0 to {self.nodes - 1}, a different rank on each node"
            return [Finding(FindingCode.INVALID_NODE_RANK, message, Place("--node-rank"), hint)]
        message, address = "", self.master_addr
        if address is None:
            message = "no rendezvous address given" if self.nodes > 1 else ""
        elif not _ADDRESS.match(address):
            message = f"{address} is not a valid host name or address"
        elif self.nodes > 1 and address.startswith(("127.", "localhost", "::1")):
            message = f"{address} refers to a different machine on each node"
        hint = "use the name or address of node 0, as the other nodes reach it"
        return [Finding(FindingCode.INVALID_RENDEZVOUS, message, Place("--master-addr"), hint)] if message else []


def hosts_of(asked: Hostfile) -> tuple[list[JobHost], list[Finding]]:
    """The hosts of a hostfile; none with a finding if the host list is invalid or names a node twice."""
    hint = "use Slurm's syntax, each node once: n[1-4],m07:8; inside a Slurm job --hosts can be left out"
    message, hosts = "no hosts given", []
    try:
        hosts = expand_slots(asked.hosts or "", asked.slots)
    except ValueError as error:
        message = str(error)
    twice = next((name for name, count in Counter(name for name, _ in hosts).items() if count > 1), None)
    if hosts and twice is None:
        return [JobHost(f"{name}{asked.suffix}", slots, f"{name}{asked.suffix}") for name, slots in hosts], []
    if twice is not None:
        # runner.py refuses such a file: "Hostfile contains multiple entries for host".
        message = f"`{twice}` is listed twice"
    return [], [Finding(FindingCode.INVALID_HOSTFILE, message, Place("--hosts"), hint)]


def plan_of_options(
    asked: JobOptions, folder: str, environment: dict[str, str]
) -> tuple[LaunchPlan | None, list[Finding]]:
    """The plan of a job that starts in `folder`; None with findings if the request is invalid.

    It is one on a cluster that has exactly what it requests.
    """
    findings = asked.faults()
    if findings:
        return None, findings
    values = asked.job()
    layer = _layer(values)
    findings = check(layer, JobSpec)
    if errors(findings):
        return None, findings
    long = long_form(layer, JobSpec)
    merged = merge([Layer(long.data, long.places, long.key_places, long.written, name="options")])
    job, _ = read(merged, JobSpec)
    partition = asked.partition if isinstance(asked, SbatchScript) else None
    cluster = _layer(
        {
            "name": "any",
            "scheduler": {"type": "slurm"},
            "node_classes": {"node": {"cpus": values["cpus_per_node"], "gpus": values["gpus_per_node"]}},
            "queues": {"queue": {"node_class": "node", "partition": partition, "memory": "omit"}},
        }
    )
    site, _ = read(cluster, SiteProfile)
    if job is None or site is None:  # checked above
        raise AssertionError(values)
    return build(Resolved(job, site, merged, merge([cluster]), names_here(environment), folder))


def _layer(values: dict[str, Any]) -> Layer:
    places: dict[KeyPath, Place] = {(): Place("config")}
    return Layer(_as_written(values, (), places), places, places, name="options")


def _as_written(value: Any, path: KeyPath, places: dict[KeyPath, Place]) -> Any:
    """The value as a job file would write it; `places` gets the option that each comes from."""
    if path:
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        places[path] = Place(_OPTIONS.get(name, "--" + name.replace("_", "-")))
    if isinstance(value, dict):
        given = {key: one for key, one in value.items() if one not in (None, [])}
        return {key: _as_written(one, (*path, key), places) for key, one in given.items()}
    if isinstance(value, list):
        return [_as_written(one, (*path, at), places) for at, one in enumerate(value)]
    return value.replace("${", "$${") if isinstance(value, str) else value  # not special on a command line
