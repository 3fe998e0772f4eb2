"""An sbatch script from a few options, without a job file or a site profile: same plan and templates as `render`.

Nothing is checked against the cluster, because only the options describe it.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.job.document import KeyPath
from hpc_launch.job.job import JobSpec
from hpc_launch.job.merge import Layer, merge
from hpc_launch.job.reader import check, read
from hpc_launch.job.short_forms import long_form
from hpc_launch.plan.build_plan import build
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.resolved import Resolved
from hpc_launch.sites.this_machine import names


class SbatchScript(Struct, frozen=True, kw_only=True):
    """A request for an sbatch script."""

    script: Annotated[str, Meta(description="The training's Python file, absolute or relative to this folder.")]
    name: Annotated[str, Meta(description="The job's name.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "train"
    nodes: Annotated[int, Meta(description="Number of nodes.", ge=1, extra={"names": ["--num-nodes"]})] = 1
    gpus_per_node: Annotated[
        int, Meta(description="GPUs per node: one process each.", ge=1, extra={"names": ["--num-gpus-per-node"]})
    ] = 1
    cpus_per_node: Annotated[int | None, Meta(description="CPUs per node. Default: 8 per GPU.", ge=1)] = None
    memory: Annotated[
        str | None, Meta(description="Memory per node, such as 256G; 0: all of it. Default: Slurm's.")
    ] = None
    time_limit: Annotated[
        str,
        Meta(description="Time limit as in Slurm: 48:00:00; a bare number is minutes.", extra={"names": ["--time"]}),
    ] = "01:00:00"
    partition: Annotated[str | None, Meta(description="The partition. Default: Slurm's.")] = None
    account: Annotated[str | None, Meta(description="The account to charge.")] = None
    use_deepspeed: Annotated[bool, Meta(description="Start with DeepSpeed's launcher instead of torchrun.")] = False
    module: Annotated[list[str], Meta(description="An environment module to load; can be repeated.")] = []
    conda: Annotated[str | None, Meta(description="A conda environment to activate.")] = None
    venv: Annotated[str | None, Meta(description="The folder of a virtual environment to activate.")] = None
    arguments: Annotated[tuple[str, ...], Meta(description="The training's own arguments.", extra={"rest": True})] = ()


CPUS_PER_GPU = 8
_OPTIONS = {
    "time": "--time-limit",
    "launcher": "--use-deepspeed",
    "args": "--",
    "modules": "--module",
}
"""Keys of a job file whose option has another name."""


def plan_of(asked: SbatchScript, folder: str, environment: dict[str, str]) -> tuple[LaunchPlan | None, list[Finding]]:
    """The plan of such a job, started in `folder`; None with findings if the request is invalid."""
    layer = _layer(_job(asked))
    findings = check(layer, JobSpec)
    if errors(findings):
        return None, findings
    long = long_form(layer, JobSpec)
    merged = merge([Layer("options", long.data, long.places, long.key_places, long.written)])
    job, _ = read(merged, JobSpec)
    cluster = _layer(_site(asked))
    site, _ = read(cluster, SiteProfile)
    if job is None or site is None:  # checked above
        raise AssertionError(asked)
    return build(Resolved(job, site, merged, merge([cluster]), names(environment), folder))


def _layer(values: dict[str, Any]) -> Layer:
    places: dict[KeyPath, Place] = {(): Place("config slurm")}
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


def _job(asked: SbatchScript) -> dict[str, Any]:
    """The equivalent job file."""
    environment: dict[str, Any] = {"modules": [_literal(name) for name in asked.module]}
    environment |= {"conda": asked.conda and _literal(asked.conda), "venv": asked.venv and _literal(asked.venv)}
    values = {
        "name": asked.name,
        "account": asked.account,
        "nodes": asked.nodes,
        "gpus_per_node": asked.gpus_per_node,
        "cpus_per_node": _cpus(asked),
        "memory": asked.memory,
        "time": asked.time_limit,
        "launcher": "deepspeed" if asked.use_deepspeed else "torchrun",
        "script": _literal(asked.script),
        "args": [_literal(word) for word in asked.arguments],
        "environment": {key: value for key, value in environment.items() if value},
    }
    return {key: value for key, value in values.items() if value is not None}


def _literal(text: str) -> str:
    """The text as a job file would write it: `${` is not special on a command line."""
    return text.replace("${", "$${")


def _cpus(asked: SbatchScript) -> int:
    return asked.cpus_per_node or CPUS_PER_GPU * asked.gpus_per_node


def _site(asked: SbatchScript) -> dict[str, Any]:
    """A cluster that has exactly what the options request."""
    queue = {"node_class": "node", "partition": asked.partition, "memory": "omit"}
    return {
        "name": "any",
        "scheduler": {"type": "slurm"},
        "node_classes": {"node": {"cpus": _cpus(asked), "gpus": asked.gpus_per_node}},
        "queues": {"queue": {key: value for key, value in queue.items() if value is not None}},
    }
