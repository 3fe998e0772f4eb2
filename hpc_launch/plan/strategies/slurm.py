"""A Slurm script without a job file or a site profile: the same plan and templates as `render`, from a few options.

Nothing is known of the cluster but what the options say, so nothing can be checked against it.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from hpc_launch.base.findings import Finding, Place, errors
from hpc_launch.plan.build_plan import build
from hpc_launch.plan.launch_plan import LaunchPlan
from hpc_launch.sites.profile import SiteProfile
from hpc_launch.sites.resolved import Resolved
from hpc_launch.sites.this_machine import names
from hpc_launch.spec.job import JobSpec
from hpc_launch.spec.merge import Layer, Path, merge
from hpc_launch.spec.reader import check, read
from hpc_launch.spec.short_forms import long_form


class Slurm(Struct, frozen=True, kw_only=True):
    """A job for Slurm in a few words."""

    script: Annotated[str, Meta(description="The training's Python file; a relative one starts at this folder.")]
    name: Annotated[str, Meta(description="What the job is called.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "train"
    nodes: Annotated[int, Meta(description="Nodes.", ge=1, extra={"names": ["--num-nodes"]})] = 1
    gpus_per_node: Annotated[
        int, Meta(description="GPUs of each node: its processes.", ge=1, extra={"names": ["--num-gpus-per-node"]})
    ] = 1
    cpus_per_node: Annotated[int | None, Meta(description="CPUs of each node. Default: 8 a GPU.", ge=1)] = None
    memory: Annotated[
        str | None, Meta(description="Memory of each node, such as 256G; 0 is all of it. Default: what Slurm gives.")
    ] = None
    time_limit: Annotated[
        str, Meta(description="As Slurm reads it: 48:00:00; a bare number is minutes.", extra={"names": ["--time"]})
    ] = "01:00:00"
    partition: Annotated[str | None, Meta(description="Slurm's partition; its default if left out.")] = None
    account: Annotated[str | None, Meta(description="The account to charge.")] = None
    use_deepspeed: Annotated[bool, Meta(description="Start with DeepSpeed's launcher in place of torchrun.")] = False
    module: Annotated[list[str], Meta(description="An environment module to load; may be repeated.")] = []
    conda: Annotated[str | None, Meta(description="A conda environment to activate.")] = None
    venv: Annotated[str | None, Meta(description="A virtual environment to activate, by its folder.")] = None
    arguments: Annotated[tuple[str, ...], Meta(description="The training's own arguments.", extra={"rest": True})] = ()


CPUS_PER_GPU = 8
_OPTIONS = {
    "time": "--time-limit",
    "launcher": "--use-deepspeed",
    "args": "--",
    "modules": "--module",
}
"""Keys of a job file that an option spells otherwise."""


def plan_of(asked: Slurm, folder: str, environment: dict[str, str]) -> tuple[LaunchPlan | None, list[Finding]]:
    """The plan of such a job, started in `folder`; None with findings where it cannot be."""
    layer = _layer(_job(asked))
    findings = check(layer, JobSpec)
    if errors(findings):
        return None, findings
    long = long_form(layer, JobSpec)
    merged = merge([Layer("options", long.data, long.places, long.key_places, long.written)])
    job, _ = read(merged, JobSpec)
    cluster = _layer(_site(asked))
    site, _ = read(cluster, SiteProfile)
    if job is None or site is None:  # what was checked above can be read
        raise AssertionError(asked)
    return build(Resolved(job, site, merged, merge([cluster]), names(environment), folder))


def _layer(values: dict[str, Any]) -> Layer:
    places: dict[Path, Place] = {(): Place("config slurm")}
    _note(values, (), places)
    return Layer("options", values, places, places)


def _note(value: Any, path: Path, places: dict[Path, Place]) -> None:
    """The option that each value comes from."""
    if path:
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        places[path] = Place(_OPTIONS.get(name, "--" + name.replace("_", "-")))
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inside:
        _note(child, (*path, key), places)


def _job(asked: Slurm) -> dict[str, Any]:
    """The job file that says the same."""
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
    """What a job file would write for this text: `${` is nothing special on a command line."""
    return text.replace("${", "$${")


def _cpus(asked: Slurm) -> int:
    return asked.cpus_per_node or CPUS_PER_GPU * asked.gpus_per_node


def _site(asked: Slurm) -> dict[str, Any]:
    """A cluster that has exactly what is asked for."""
    queue = {"node_class": "node", "partition": asked.partition, "memory": "omit"}
    return {
        "name": "any",
        "scheduler": {"type": "slurm"},
        "node_classes": {"node": {"cpus": _cpus(asked), "gpus": asked.gpus_per_node}},
        "queues": {"queue": {key: value for key, value in queue.items() if value is not None}},
    }
