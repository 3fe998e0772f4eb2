"""Plans and hosts from a few options, without a job file or a site profile: `config slurm`, `launcher`, `hostfile`.

The options describe a job and a cluster that has exactly what they request; plan and script are those of any other job.
Nothing is checked against a real cluster.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any

from msgspec import Meta, Struct

from hpc_launch.base.finding_codes import FindingCode, Severity
from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.job.document import KeyPath
from hpc_launch.job.hostlist import expand
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
_OPTIONS = {"time": "--time-limit", "launcher": "--use-deepspeed", "args": "--", "modules": "--module"}
"""Keys of a job file whose option has another name."""


class _Options(Struct, frozen=True, kw_only=True):
    """What both commands ask for."""

    script: Annotated[str, Meta(description="The training's Python file, absolute or relative to this folder.")]
    gpus_per_node: Annotated[
        int, Meta(description="GPUs per node: one process each.", ge=1, extra={"names": ["--num-gpus-per-node"]})
    ] = 1
    cpus_per_node: Annotated[int | None, Meta(description="CPUs per node. Default: 8 per GPU.", ge=1)] = None
    use_deepspeed: Annotated[bool, Meta(description="Start with DeepSpeed's launcher instead of torchrun.")] = False
    arguments: Annotated[tuple[str, ...], Meta(description="The training's own arguments.", extra={"rest": True})] = ()

    def job(self) -> dict[str, Any]:
        """The equivalent job file, as far as these options say it."""
        return {
            "gpus_per_node": self.gpus_per_node,
            "cpus_per_node": self.cpus_per_node or CPUS_PER_GPU * self.gpus_per_node,
            "launcher": "deepspeed" if self.use_deepspeed else "torchrun",
            "script": _literal(self.script),
            "args": [_literal(word) for word in self.arguments],
        }


class Hostfile(Struct, frozen=True, kw_only=True):
    """A request for a hostfile."""

    hosts: Annotated[
        str | None,
        Meta(
            description="The nodes as a Slurm host list, such as n[1-4]. Default: the nodes of the Slurm job around it."
        ),
    ] = None
    slots: Annotated[int, Meta(description="Processes per node: its GPUs.", ge=1)] = 1
    suffix: Annotated[str, Meta(description="Appended to each name, if the fast network has its own names.")] = ""


class SbatchScript(_Options, frozen=True, kw_only=True):
    """A request for an sbatch script."""

    name: Annotated[str, Meta(description="The job's name.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "train"
    nodes: Annotated[int, Meta(description="Number of nodes.", ge=1, extra={"names": ["--num-nodes"]})] = 1
    memory: Annotated[
        str | None, Meta(description="Memory per node, such as 256G; 0: all of it. Default: Slurm's.")
    ] = None
    time_limit: Annotated[
        str,
        Meta(description="Time limit as in Slurm: 48:00:00; a bare number is minutes.", extra={"names": ["--time"]}),
    ] = "01:00:00"
    partition: Annotated[str | None, Meta(description="The partition. Default: Slurm's.")] = None
    account: Annotated[str | None, Meta(description="The account to charge.")] = None
    module: Annotated[list[str], Meta(description="An environment module to load; can be repeated.")] = []
    conda: Annotated[str | None, Meta(description="A conda environment to activate.")] = None
    venv: Annotated[str | None, Meta(description="The folder of a virtual environment to activate.")] = None


class NodeScript(_Options, frozen=True, kw_only=True):
    """A request for the script of one node."""

    num_nodes: Annotated[int, Meta(description="Number of nodes.", ge=1, extra={"names": ["--nodes"]})] = 1
    master_addr: Annotated[
        str | None, Meta(description="The first node's name or address, as the other nodes reach it.")
    ] = None
    master_port: Annotated[
        int,
        Meta(
            description="A free port on the first node, below 32768: outgoing connections use the ports above.", ge=1024
        ),
    ] = 29500
    node_rank: Annotated[
        int, Meta(description="This node's rank, from 0; rank 0 is the node of --master-addr.", ge=0)
    ] = 0
    python: Annotated[str, Meta(description="The Python interpreter of the training.")] = "python3"


def plan_of_sbatch_script(
    asked: SbatchScript, folder: str, environment: dict[str, str]
) -> tuple[LaunchPlan | None, list[Finding]]:
    """The plan of a Slurm job that starts in `folder`; None with findings if the request is invalid."""
    software = {
        "modules": [_literal(name) for name in asked.module],
        "conda": asked.conda and _literal(asked.conda),
        "venv": asked.venv and _literal(asked.venv),
    }
    job = {
        **asked.job(),
        "name": asked.name,
        "account": asked.account,
        "nodes": asked.nodes,
        "memory": asked.memory,
        "time": asked.time_limit,
        "environment": {key: value for key, value in software.items() if value},
    }
    return _plan(job, asked.partition, folder, environment)


def plan_of_node_script(
    asked: NodeScript, folder: str, environment: dict[str, str]
) -> tuple[LaunchPlan | None, list[Finding]]:
    """The plan of a start by hand on `num_nodes` nodes; None with findings if it could not start."""
    findings = _check(asked)
    if errors(findings):
        return None, findings
    job = {**asked.job(), "name": "train", "nodes": asked.num_nodes, "time": 60}
    plan, more = _plan({**job, "environment": {"python": _literal(asked.python)}}, None, folder, environment)
    return plan, findings + more


def hosts_of(asked: Hostfile) -> tuple[list[JobHost], list[Finding]]:
    """The hosts of a hostfile; none with a finding if the host list is invalid or names a node twice."""

    def refused(message: str, option: str, hint: str) -> tuple[list[JobHost], list[Finding]]:
        return [], [Finding(FindingCode.INVALID_HOSTFILE, message, Place(option), hint)]

    if not asked.hosts or not asked.hosts.strip():
        hint = "add --hosts 'n[1-4]', or run this inside a Slurm job, where $SLURM_JOB_NODELIST is set"
        return refused("no hosts given", "--hosts", hint)
    try:
        names = expand(asked.hosts)
    except ValueError as error:
        return refused(str(error), "--hosts", "use Slurm's syntax: n[1-4],m07")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        # runner.py refuses such a file: "Hostfile contains multiple entries for host".
        return refused(f"`{twice}` is listed twice", "--hosts", "list each node once; set its GPUs with --slots")
    if any(not character.isalnum() and character not in ".-" for character in asked.suffix):
        return refused("the suffix is not valid in a host name", "--suffix", "use letters, digits, `.` and `-`")
    return [JobHost(f"{name}{asked.suffix}", asked.slots, name) for name in names], []


def nodes_of(asked: NodeScript) -> list[str]:
    """Names for the nodes of a start by hand: only the first one is known, and needed."""
    return [asked.master_addr or "127.0.0.1", *(f"node{rank}" for rank in range(1, asked.num_nodes))]


def _check(asked: NodeScript) -> list[Finding]:
    findings: list[Finding] = []

    def fault(code: FindingCode, message: str, option: str, hint: str, severity: Severity = "error") -> None:
        findings.append(Finding(code, message, Place(option), hint, severity))

    if asked.node_rank >= asked.num_nodes:
        message = f"invalid node rank {asked.node_rank} for {asked.num_nodes} nodes"
        hint = f"use 0 to {asked.num_nodes - 1}, a different rank on each node"
        fault(FindingCode.INVALID_NODE_RANK, message, "--node-rank", hint)
    if asked.num_nodes > 1 and asked.master_addr is None:
        hint = "add --master-addr with the name or address of node 0, the same on every node"
        fault(FindingCode.INVALID_RENDEZVOUS, "no rendezvous address given", "--master-addr", hint)
    elif asked.master_addr is not None and not _ADDRESS.match(asked.master_addr):
        hint = "use a name or address such as node1 or 192.168.1.100"
        fault(FindingCode.INVALID_RENDEZVOUS, "not a valid host name or address", "--master-addr", hint)
    elif asked.num_nodes > 1 and (asked.master_addr or "").startswith(("127.", "localhost", "::1")):
        message = f"{asked.master_addr} refers to a different machine on each node"
        hint = "use the name of node 0 as the other nodes reach it"
        fault(FindingCode.INVALID_RENDEZVOUS, message, "--master-addr", hint)
    if asked.master_port > 65535:
        message = f"invalid port {asked.master_port}"
        fault(FindingCode.INVALID_RENDEZVOUS, message, "--master-port", "use 1024 to 32767")
    elif asked.master_port >= 32768:
        message = f"an outgoing connection may occupy port {asked.master_port} at any time"
        fault(FindingCode.INVALID_RENDEZVOUS, message, "--master-port", "use 1024 to 32767", "warning")
    return findings


def _plan(
    values: dict[str, Any], partition: str | None, folder: str, environment: dict[str, str]
) -> tuple[LaunchPlan | None, list[Finding]]:
    """The plan of a job on a cluster that has exactly what it requests."""
    layer = _layer(_set(values))
    findings = check(layer, JobSpec)
    if errors(findings):
        return None, findings
    long = long_form(layer, JobSpec)
    merged = merge([Layer("options", long.data, long.places, long.key_places, long.written)])
    job, _ = read(merged, JobSpec)
    cluster = _layer(
        {
            "name": "any",
            "scheduler": {"type": "slurm"},
            "node_classes": {"node": {"cpus": values["cpus_per_node"], "gpus": values["gpus_per_node"]}},
            "queues": {"queue": _set({"node_class": "node", "partition": partition, "memory": "omit"})},
        }
    )
    site, _ = read(cluster, SiteProfile)
    if job is None or site is None:  # checked above
        raise AssertionError(values)
    return build(Resolved(job, site, merged, merge([cluster]), names_here(environment), folder))


def _layer(values: dict[str, Any]) -> Layer:
    places: dict[KeyPath, Place] = {(): Place("config")}
    _note(values, (), places)
    return Layer("options", values, places, places)


def _note(value: Any, path: KeyPath, places: dict[KeyPath, Place]) -> None:
    """Record the option that each value comes from."""
    if path:
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        places[path] = Place(_OPTIONS.get(name, "--" + name.replace("_", "-")))
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inside:
        _note(child, (*path, key), places)


def _set(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _literal(text: str) -> str:
    """The text as a job file would write it: `${` is not special on a command line."""
    return text.replace("${", "$${")
