"""A site profile, typed: what differs from cluster to cluster, as data. Docs and JSON schema are made from here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.sites.container_settings import Containers
from hpc_launch.sites.detection_rules import Hosts, Parameter, Probe, Unusable
from hpc_launch.sites.fabric import Fabric
from hpc_launch.sites.fact_sources import Day, Fact, Lifecycle, Published
from hpc_launch.sites.folders import Cache, Folder
from hpc_launch.sites.internet import Internet
from hpc_launch.sites.network import Launch, Network
from hpc_launch.sites.node_classes import NodeClass
from hpc_launch.sites.option_rules import LauncherAdvice, LinkedRule, Options
from hpc_launch.sites.prelude import PreludeStep, Setting
from hpc_launch.sites.queues import Account, Queue
from hpc_launch.sites.software_stacks import SiteOption, Stack
from hpc_launch.spec.field_types import NAME_PATTERN

Job = Meta(extra={"holds": "job"})
"""Marks a mapping with keys of a job file."""
Adds = Meta(extra={"merge": "append"})
"""Marks a list to which a layer adds instead of replacing it."""


class SchedulerProperties(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who runs the jobs here."""

    type: Annotated[Literal["slurm", "local"], Meta(description="Slurm, or this machine without any scheduler.")]
    requeue: Annotated[
        Literal["never", "scheduler"],
        Meta(
            description="Who starts a job again after its node failed or it was preempted: `never` Slurm (the script "
            "says `--no-requeue`), or the `scheduler` itself."
        ),
    ] = "never"
    sentinel: Annotated[
        str | None,
        Meta(
            description="The queue for a small job that starts when a training's job is over and makes the next "
            "attempt. None is submitted if left out."
        ),
    ] = None
    version: Annotated[str | None, Meta(description="Slurm's release.", pattern=r"^\d+\.\d+", examples=["24.05"])] = (
        None
    )
    submit_from: Annotated[
        list[str],
        Meta(
            description="Folders, with `*`, below which a job must be submitted; any if left out.",
            examples=[["${env.SCRATCH}/*"]],
        ),
    ] = []
    submit_hosts: Annotated[
        list[str],
        Meta(
            description="Hosts, with `*`, on which jobs must be submitted; any if left out.", examples=[["*gpu-login*"]]
        ),
    ] = []

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`scheduler: slurm`."""
        return {"type": value} if isinstance(value, str) else None


class SiteProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster, or this machine."""

    name: Annotated[
        str, Meta(description="What `--site` calls it.", pattern=NAME_PATTERN, max_length=64, examples=["juwels"])
    ]
    title: Annotated[str, Meta(description="The name in full.")] = ""
    kind: Annotated[
        Literal["system", "template", "base"],
        Meta(description="A real `system`, a `template` to be filled in, or a `base` that others build on."),
    ] = "system"
    extends: Annotated[
        str | list[str],
        Meta(
            description="The profiles that this one builds on, a later one over an earlier one: names, looked "
            "up in the folders of the search path and `bases/` there. A profile's own name means the next one of it.",
            examples=[["slingshot", "nvidia"]],
        ),
    ] = []
    recorded: Annotated[
        bool, Meta(description="Set in the copy that a run keeps, in which all layers are put together already.")
    ] = False
    status: Annotated[
        Literal["verified", "documented", "draft"],
        Meta(description="`verified` on the system, `documented` from its published pages, or a `draft`."),
    ] = "draft"
    lifecycle: Annotated[Lifecycle, Meta(description="Whether the system is in service.")] = Lifecycle()
    grade: Annotated[
        Literal["A", "B", "C"] | None,
        Meta(description="How good the sources are: `A` the centre's own, `B` in part or dated, `C` a third party's."),
    ] = None
    source: Annotated[str | None, Meta(description="Where the facts come from.")] = None
    as_of: Annotated[Day | None, Meta(description="The day they were read, YYYY-MM-DD.")] = None
    facts: Annotated[
        dict[str, Fact],
        Meta(
            description="The same for a group of facts: a key of this file, with dots for what is inside, such as "
            "`queues` or `queues.gpu`. The longest that fits counts; the keys above hold for the rest.",
            examples=[{"queues": {"as_of": "2026-07-31", "grade": "A"}}],
        ),
    ] = {}
    contact: Annotated[str | None, Meta(description="Who keeps the profile.")] = None
    url: Annotated[str | None, Meta(description="The site's own documentation.")] = None
    verified_on: Annotated[Day | None, Meta(description="The day it was last tried on the system.")] = None
    verified_by: Annotated[str | None, Meta(description="Who tried it.")] = None
    published: Annotated[
        list[Published], Meta(description="The site's own examples, and what the script has otherwise; for readers.")
    ] = []
    unknown: Annotated[
        list[str], Meta(description="What no source was found for, and is therefore left out; for readers.")
    ] = []
    parameters: Annotated[
        dict[str, Parameter],
        Meta(description="What a template must be told; `${param.NAME}` stands for it in any text."),
    ] = {}
    values: Annotated[
        dict[str, str], Meta(description="Values of parameters: in a profile that extends a template, or the user's.")
    ] = {}
    detect: Annotated[list[Probe], Meta(description="What a login node of the site is known by, best first.")] = []
    hosts: Annotated[Hosts, Meta(description="Names of the site's hosts.")] = Hosts()
    scheduler: Annotated[SchedulerProperties, Meta(description="Who runs the jobs.")]
    node_classes: Annotated[dict[str, NodeClass], Meta(description="The kinds of nodes, by a name.")]
    queues: Annotated[dict[str, Queue], Meta(description="The places to run, by a name that job files use.")]
    default_queue: Annotated[
        str | None, Meta(description="The queue of a job that names none; the first one if left out.")
    ] = None
    account: Annotated[Account, Meta(description="Rules for the account.")] = Account()
    sbatch: Annotated[Options, Meta(description="What the site wants, refuses or calls otherwise of sbatch.")] = (
        Options()
    )
    srun: Annotated[Options, Meta(description="The same of srun, for the step inside the job.")] = Options()
    rules: Annotated[list[LinkedRule], Adds, Meta(description="Settings that belong together, or do not.")] = []
    launchers: Annotated[
        dict[Annotated[str, Meta(pattern="^(torchrun|deepspeed|srun|none)$")], LauncherAdvice],
        Meta(description="What the site says about each launcher.", examples=[{"torchrun": "discouraged"}]),
    ] = {}
    versions: Annotated[
        dict[str, str],
        Meta(description="Software that every job has, for conditions.", examples=[{"libfabric": "1.22"}]),
    ] = {}
    stacks: Annotated[dict[str, Stack], Meta(description="Sets of software, by name.")] = {}
    options: Annotated[
        dict[str, SiteOption], Meta(description="Settings that a job asks for by name, with `options: [NAME]`.")
    ] = {}
    login_shell: Annotated[bool, Meta(description="Whether jobs need a login shell: `#!/bin/bash -l`.")] = False
    prelude: Annotated[
        list[PreludeStep], Adds, Meta(description="Steps before the training: modules, files to source, folders.")
    ] = []
    env: Annotated[list[Setting], Adds, Meta(description="Variables of the training, with scope and condition.")] = []
    fabric: Annotated[Fabric, Meta(description="The fast network.")] = Fabric()
    paths: Annotated[
        dict[str, Folder],
        Meta(description="Folders that job files name as `${paths.NAME}`.", examples=[{"scratch": "/scratch/${user}"}]),
    ] = {}
    caches: Annotated[
        dict[str, Cache],
        Meta(
            description="Caches that must not lie in the home: `huggingface`, `torch`, `triton`, `inductor`, `miopen`, "
            "`cuda`, `xdg`, `pip`, or the name of a variable.",
            examples=[{"huggingface": "${paths.scratch}/huggingface"}],
        ),
    ] = {}
    bad_nodes: Annotated[Unusable, Meta(description="Nodes that jobs are kept off.")] = Unusable()
    network: Annotated[Network, Meta(description="How processes find each other.")] = Network()
    launch: Annotated[Launch, Meta(description="How the step is started.")] = Launch()
    internet: Annotated[Internet, Meta(description="What compute nodes reach.")] = Internet()
    containers: Annotated[Containers, Meta(description="How images run here, and which there are.")] = Containers()
    defaults: Annotated[
        dict[str, Any],
        Job,
        Meta(description="Keys of a job file that hold here unless the job says otherwise, such as `env`."),
    ] = {}


class Overlay(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's own `user.yaml`: what no shared profile should hold, such as the account."""

    defaults: Annotated[dict[str, Any], Meta(description="Keys of a job file that hold on every site.")] = {}
    sites: Annotated[
        dict[str, dict[str, Any]], Meta(description="Keys of a job file that hold on one site, by its name.")
    ] = {}
    profiles: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="Keys of a site profile for one site, by its name: the last layer over it, such as `paths`."),
    ] = {}
