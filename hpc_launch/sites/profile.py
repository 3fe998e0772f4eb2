"""Schema of a site profile: the differences between clusters, as data. The reference page and the JSON schema are
generated from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.job.type_hints import NAME_PATTERN
from hpc_launch.sites.folders import Cache, Containers, Folder
from hpc_launch.sites.network import HOST_NAME, Launch, Network, SshHost
from hpc_launch.sites.option_rules import LauncherAdvice, LinkedRule, Options, SiteOption, Stack
from hpc_launch.sites.prelude import PreludeStep, Setting
from hpc_launch.sites.provenance import Day, Fact, Lifecycle, Published
from hpc_launch.sites.queues import Account, Fabric, Internet, NodeClass, Queue


class DetectionRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One detection rule. All of its keys must match; one matching rule is enough."""

    env: Annotated[
        dict[str, str], Meta(description="Variables that the site sets, with their values. `*` is a wildcard.")
    ] = {}
    host: Annotated[
        str | None,
        Meta(description="Fully qualified host name, with `*` and `?` as wildcards.", examples=["*.alps.cscs.ch"]),
    ] = None
    path: Annotated[str | None, Meta(description="A file or folder that exists.")] = None
    cluster: Annotated[str | None, Meta(description="Slurm's ClusterName. Queried last and with a time limit.")] = None


class Hosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Host names of the site, with `*` and `?` as wildcards."""

    login: Annotated[list[str], Meta(description="Login nodes.")] = []
    compute: Annotated[list[str], Meta(description="Compute nodes.")] = []
    login_internet: Annotated[
        bool | None, Meta(description="Whether login nodes have internet access. Unknown if omitted.")
    ] = None
    login_containers: Annotated[
        bool | None, Meta(description="Whether images can be run and built on login nodes. Unknown if omitted.")
    ] = None


class Parameter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A parameter of a template, used as `${param.NAME}`."""

    about: Annotated[str, Meta(description="What the parameter is, and how to find its value.")] = ""
    pattern: Annotated[str | None, Meta(description="Regular expression that must match the whole value.")] = None
    default: Annotated[str | None, Meta(description="Default value. Without one, the parameter is required.")] = None
    example: Annotated[
        str | None, Meta(description="Example value for the profile page and for `sites check`. Jobs never use it.")
    ] = None


class UnusableNodes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes to exclude."""

    nodes: Annotated[list[str], Meta(description="Slurm host lists.")] = []
    file: Annotated[
        str | None,
        Meta(
            description="File with one host list per line, read when a job is planned. "
            "Its nodes count like reports: at most a tenth of a queue is excluded."
        ),
    ] = None


JobKeys = Meta(extra={"holds": "job"})
"""Marks a mapping with keys of a job file."""
ExtendsList = Meta(extra={"merge": "append"})
"""Marks a list that layers extend instead of replacing it."""


class Billing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the site charges for jobs. For readers."""

    unit: Annotated[
        str | None, Meta(description="Unit in which jobs are charged.", examples=["node hour", "GPU hour"])
    ] = None
    smallest: Annotated[
        str | None,
        Meta(
            description="Smallest allocation that a job can get and is charged for.",
            examples=["one GPU with 18 cores and 120 GiB"],
        ),
    ] = None


class SchedulerProperties(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scheduler."""

    type: Annotated[
        Literal["slurm", "local", "ssh"],
        Meta(
            description="Slurm; `ssh` for hosts without a scheduler, reached by ssh; or `local` for this machine alone."
        ),
    ]
    hosts: Annotated[
        dict[HOST_NAME, SshHost],
        Meta(
            description="`ssh`: the hosts by the names that `ssh` knows, in the order in which jobs get them.",
            examples=[{"gpu1": 8, "gpu2": 4}],
        ),
    ] = {}
    hostfile: Annotated[
        str | None,
        Meta(
            description="`ssh`: a host file in DeepSpeed's format, `NAME slots=N`, instead of the slots in `hosts`. "
            "Relative paths start at the folder of the job file.",
            examples=["~/hostfile"],
        ),
    ] = None
    include: Annotated[
        str | None,
        Meta(
            description="`ssh`: hosts and slots to use, as for DeepSpeed's `--include`.", examples=["gpu1@gpu2:0,1,2"]
        ),
    ] = None
    exclude: Annotated[
        str | None,
        Meta(description="`ssh`: hosts and slots not to use, as for DeepSpeed's `--exclude`.", examples=["gpu2:3"]),
    ] = None
    shared: Annotated[
        bool, Meta(description="`ssh`: whether several runs may use a host at the same time. They then share its GPUs.")
    ] = False
    shared_folders: Annotated[
        Annotated[bool, Meta(title="all or none")] | Annotated[list[str], Meta(title="folders that are shared")],
        Meta(
            description="`ssh`: whether all hosts mount the folders of runs and code at the same paths: all, none, or "
            "those below the folders of a list. For others, each job copies its run folder to its hosts and brings the "
            "logs back.",
            examples=[False, ["/nfs"]],
        ),
    ] = True
    requeue: Annotated[
        Literal["never", "scheduler", "expedite"],
        Meta(
            description="Who restarts a job after a node failure or preemption: with `never`, the script sets "
            "`--no-requeue`; with `scheduler`, Slurm requeues it; with `expedite`, Slurm 25.11 or later requeues it "
            "before all other jobs, and keeps its nodes (`SlurmctldParameters=enable_expedited_requeue`)."
        ),
    ] = "never"
    sentinel: Annotated[
        str | None,
        Meta(
            description="Queue for a small job that starts when a training job has ended and submits the next "
            "attempt. If omitted, no sentinel job is submitted."
        ),
    ] = None
    successor: Annotated[
        bool,
        Meta(
            description="Whether a run may keep its next job in the queue while the current one runs "
            "(`retry.successor` of a job). `false` at sites that count pending jobs."
        ),
    ] = True
    version: Annotated[str | None, Meta(description="Slurm release.", pattern=r"^\d+\.\d+", examples=["24.05"])] = None
    submit_from: Annotated[
        list[str],
        Meta(
            description="Folders below which jobs must be submitted, with `*` as wildcard. Default: any.",
            examples=[["${env.SCRATCH}/*"]],
        ),
    ] = []
    submit_hosts: Annotated[
        list[str],
        Meta(
            description="Hosts on which jobs must be submitted, with `*` as wildcard. Default: any.",
            examples=[["*gpu-login*"]],
        ),
    ] = []

    @classmethod
    def __short_forms__(cls, value: object) -> dict[str, object] | None:
        """`scheduler: slurm`."""
        return {"type": value} if isinstance(value, str) else None


class SiteProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster, or this machine."""

    name: Annotated[
        str, Meta(description="Name for `--site`.", pattern=NAME_PATTERN, max_length=64, examples=["juwels"])
    ]
    title: Annotated[str, Meta(description="Full name.")] = ""
    kind: Annotated[
        Literal["system", "template", "base"],
        Meta(description="A real `system`, a `template` with parameters, or a `base` that other profiles extend."),
    ] = "system"
    extends: Annotated[
        str | list[str],
        Meta(
            description="Profiles to extend. Later ones override earlier ones. They are looked up by name in the "
            "folders of the search path and in `bases/` below them. A profile's own name refers to the "
            "next profile of that name on the search path.",
            examples=[["slingshot", "nvidia"]],
        ),
    ] = []
    recorded: Annotated[
        bool, Meta(description="Set in the copy that a run keeps, in which all layers are already merged.")
    ] = False
    status: Annotated[
        Literal["verified", "documented", "draft"],
        Meta(description="`verified` on the system, `documented` from its published pages, or a `draft`."),
    ] = "draft"
    lifecycle: Annotated[Lifecycle, Meta(description="Whether the system is in service.")] = Lifecycle()
    grade: Annotated[
        Literal["A", "B", "C"] | None,
        Meta(
            description="Quality of the sources: `A` from the centre, `B` partly or outdated from it, `C` from a "
            "third party."
        ),
    ] = None
    source: Annotated[str | None, Meta(description="Source of the facts.")] = None
    as_of: Annotated[Day | None, Meta(description="Date on which the source was read, YYYY-MM-DD.")] = None
    facts: Annotated[
        dict[str, Fact],
        Meta(
            description="Sources of individual groups of facts: keys of this file, with dots for nested keys, such "
            "as `queues` or `queues.gpu`. The longest match applies; everything else uses the keys "
            "above.",
            examples=[{"queues": {"as_of": "2026-07-31", "grade": "A"}}],
        ),
    ] = {}
    contact: Annotated[str | None, Meta(description="Maintainer of the profile.")] = None
    url: Annotated[str | None, Meta(description="The site's documentation.")] = None
    verified_on: Annotated[Day | None, Meta(description="Date of the last test on the system.")] = None
    verified_by: Annotated[str | None, Meta(description="Who tested it.")] = None
    published: Annotated[
        list[Published], Meta(description="The site's own examples and how the script differs from them. For readers.")
    ] = []
    unknown: Annotated[
        list[str], Meta(description="Facts that are omitted because no source was found. For readers.")
    ] = []
    parameters: Annotated[
        dict[str, Parameter],
        Meta(description="Parameters of a template. `${param.NAME}` in any text is replaced with the value."),
    ] = {}
    values: Annotated[
        dict[str, str],
        Meta(description="Parameter values: in a profile that extends a template, or in the user's overlay."),
    ] = {}
    detect: Annotated[
        list[DetectionRule], Meta(description="How to recognize the site's login nodes, most reliable rule first.")
    ] = []
    hosts: Annotated[Hosts, Meta(description="Host names of the site.")] = Hosts()
    scheduler: Annotated[SchedulerProperties, Meta(description="The scheduler.")]
    node_classes: Annotated[dict[str, NodeClass], Meta(description="Types of nodes, by name.")]
    queues: Annotated[dict[str, Queue], Meta(description="Queues, by the name that job files use.")]
    default_queue: Annotated[str | None, Meta(description="Default queue of a job. Default: the first queue.")] = None
    account: Annotated[Account, Meta(description="Rules for the account.")] = Account()
    billing: Annotated[Billing, Meta(description="How the site charges for jobs. For readers.")] = Billing()
    pytorch: Annotated[
        str | None,
        Meta(
            description="How to use the PyTorch that the centre itself provides. For readers. Unknown if omitted.",
            examples=["module load pytorch"],
        ),
    ] = None
    sbatch: Annotated[Options, Meta(description="sbatch options that the site adds, renames, requires or forbids.")] = (
        Options()
    )
    srun: Annotated[Options, Meta(description="The same for srun, which starts the job step.")] = Options()
    rules: Annotated[
        list[LinkedRule], ExtendsList, Meta(description="Settings that require or exclude each other.")
    ] = []
    launchers: Annotated[
        dict[Annotated[str, Meta(pattern="^(torchrun|deepspeed|srun|none)$")], LauncherAdvice],
        Meta(description="The site's advice on each launcher.", examples=[{"torchrun": "discouraged"}]),
    ] = {}
    versions: Annotated[
        dict[str, str],
        Meta(description="Software available to every job, for conditions.", examples=[{"libfabric": "1.22"}]),
    ] = {}
    stacks: Annotated[dict[str, Stack], Meta(description="Software stacks, by name.")] = {}
    options: Annotated[
        dict[str, SiteOption], Meta(description="Settings that a job enables by name, with `options: [NAME]`.")
    ] = {}
    login_shell: Annotated[bool, Meta(description="Use a login shell for jobs: `#!/bin/bash -l`.")] = False
    prelude: Annotated[
        list[PreludeStep],
        ExtendsList,
        Meta(description="Steps before the training: load modules, source files, create folders."),
    ] = []
    env: Annotated[
        list[Setting], ExtendsList, Meta(description="Variables of the training, with scope and condition.")
    ] = []
    fabric: Annotated[Fabric, Meta(description="The fast network.")] = Fabric()
    paths: Annotated[
        dict[str, Folder],
        Meta(
            description="Folders that job files refer to as `${paths.NAME}`.",
            examples=[{"scratch": "/scratch/${user}"}],
        ),
    ] = {}
    caches: Annotated[
        dict[str, Cache],
        Meta(
            description="Caches to keep out of the home folder: `huggingface`, `torch`, `triton`, `inductor`, "
            "`miopen`, `cuda`, `xdg`, `pip`, or the name of a variable.",
            examples=[{"huggingface": "${paths.scratch}/huggingface"}],
        ),
    ] = {}
    bad_nodes: Annotated[UnusableNodes, Meta(description="Nodes to exclude.")] = UnusableNodes()
    network: Annotated[Network, Meta(description="How processes find each other.")] = Network()
    launch: Annotated[Launch, Meta(description="How to start the job step.")] = Launch()
    internet: Annotated[Internet, Meta(description="Internet access of the compute nodes.")] = Internet()
    containers: Annotated[Containers, Meta(description="How images run, and the site's images.")] = Containers()
    defaults: Annotated[
        dict[str, Any],
        JobKeys,
        Meta(description="Job file keys that apply unless the job overrides them, such as `env`."),
    ] = {}


class Overlay(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's own `user.yaml`: settings that do not belong in a shared profile, such as the account."""

    defaults: Annotated[dict[str, Any], Meta(description="Job file keys for every site.")] = {}
    sites: Annotated[dict[str, dict[str, Any]], Meta(description="Job file keys for one site, by its name.")] = {}
    profiles: Annotated[
        dict[str, dict[str, Any]],
        Meta(
            description="Site profile keys for one site, by its name, such as `paths`. This is the topmost layer "
            "of the profile."
        ),
    ] = {}
