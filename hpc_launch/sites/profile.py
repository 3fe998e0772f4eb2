"""Schema of a site profile: the differences between clusters, as data. The reference page and the JSON schema are
generated from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpc_launch.job.type_hints import NAME_PATTERN, LauncherName, SchedulerName, short_form
from hpc_launch.sites.folders import Cache, Containers, Folder
from hpc_launch.sites.job_settings import LauncherAdvice, LinkedRule, Options, PreludeStep, Setting, SiteOption, Stack
from hpc_launch.sites.network import HOST_NAME, Launch, Network, SshHost
from hpc_launch.sites.provenance import Day, Fact, Lifecycle, Published
from hpc_launch.sites.queues import Account, Fabric, Internet, NodeClass, Queue


class DetectionRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One detection rule. All of its keys must match; one matching rule is enough."""

    env: dict[str, str] = {}
    """Variables that the site sets, with their values. `*` is a wildcard."""
    host: Annotated[str | None, Meta(examples=["*.alps.cscs.ch"])] = None
    """Fully qualified host name, with `*` and `?` as wildcards."""
    path: str | None = None
    """A file or folder that exists."""
    cluster: str | None = None
    """Slurm's ClusterName. Queried last and with a time limit."""


class Hosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Host names of the site, with `*` and `?` as wildcards."""

    login: list[str] = []
    """Login nodes."""
    compute: list[str] = []
    """Compute nodes."""
    login_internet: bool | None = None
    """Whether login nodes have internet access. Unknown if omitted."""
    login_containers: bool | None = None
    """Whether images can be run and built on login nodes. Unknown if omitted."""


class Parameter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A parameter of a template, used as `${param.NAME}`."""

    about: str = ""
    """What the parameter is, and how to find its value."""
    pattern: str | None = None
    """Regular expression that must match the whole value."""
    default: str | None = None
    """Default value. Without one, the parameter is required."""
    example: str | None = None
    """Example value for the profile page and for `sites check`. Jobs never use it."""


class UnusableNodes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes to exclude."""

    nodes: list[str] = []
    """Slurm host lists."""
    file: str | None = None
    """File with one host list per line, read when a job is planned. Its nodes count like reports: at most a tenth
    of a queue is excluded."""


JobKeys = Meta(extra={"holds": "job"})
"""Marks a mapping with keys of a job file."""
ExtendsList = Meta(extra={"merge": "append"})
"""Marks a list that layers extend instead of replacing it."""


class Billing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the site charges for jobs. For readers."""

    unit: Annotated[str | None, Meta(examples=["node hour", "GPU hour"])] = None
    """Unit in which jobs are charged."""
    smallest: Annotated[str | None, Meta(examples=["one GPU with 18 cores and 120 GiB"])] = None
    """Smallest allocation that a job can get and is charged for."""
    gpu_hour: Annotated[float | None, Meta(ge=0, examples=[1.9])] = None
    """Price of a GPU hour in `currency`, for the cost that `report` shows."""
    currency: Annotated[str | None, Meta(examples=["EUR"])] = None
    """Currency of the price."""


class SchedulerProperties(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scheduler."""

    type: SchedulerName
    """Slurm; `ssh` for hosts without a scheduler, reached by ssh; `local` for this machine alone; or the scheduler of
    an installed package."""
    hosts: Annotated[dict[HOST_NAME, SshHost], Meta(examples=[{"gpu1": 8, "gpu2": 4}])] = {}
    """`ssh`: the hosts by the names that `ssh` knows, in the order in which jobs get them."""
    hostfile: Annotated[str | None, Meta(examples=["~/hostfile"])] = None
    """`ssh`: a host file in DeepSpeed's format, `NAME slots=N`, instead of the slots in `hosts`. Relative paths
    start at the folder of the job file."""
    include: Annotated[str | None, Meta(examples=["gpu1@gpu2:0,1,2"])] = None
    """`ssh`: hosts and slots to use, as for DeepSpeed's `--include`."""
    exclude: Annotated[str | None, Meta(examples=["gpu2:3"])] = None
    """`ssh`: hosts and slots not to use, as for DeepSpeed's `--exclude`."""
    shared: bool = False
    """`ssh`: whether several runs may use a host at the same time. They then share its GPUs."""
    shared_folders: Annotated[
        Annotated[bool, Meta(title="all or none")] | Annotated[list[str], Meta(title="folders that are shared")],
        Meta(examples=[False, ["/nfs"]]),
    ] = True
    """`ssh`: whether all hosts mount the folders of runs and code at the same paths: all, none, or those below the
    folders of a list. For others, each job copies its run folder to its hosts and brings the logs back."""
    requeue: Literal["never", "scheduler", "expedite"] = "never"
    """Who restarts a job after a node failure or preemption: with `never`, the script sets `--no-requeue`; with
    `scheduler`, Slurm requeues it; with `expedite`, Slurm 25.11 or later requeues it before all other jobs, and
    keeps its nodes (`SlurmctldParameters=enable_expedited_requeue`)."""
    sentinel: str | None = None
    """Queue for a small job that starts when a training job has ended and submits the next attempt. If omitted, no
    sentinel job is submitted."""
    successor: bool = True
    """Whether a run may keep its next job in the queue while the current one runs (`retry.successor` of a job).
    `false` at sites that count pending jobs."""
    version: Annotated[str | None, Meta(pattern=r"^\d+\.\d+", examples=["24.05"])] = None
    """Slurm release."""
    node_access: Literal["srun", "ssh", "none"] = "srun"
    """How `shell` and `stacks` get to the nodes of a job that runs: by a further step (`srun --overlap`, Slurm 20.11 or
    later), by `ssh`, or not at all where the site forbids both."""
    submit_from: Annotated[list[str], Meta(examples=[["${env.SCRATCH}/*"]])] = []
    """Folders below which jobs must be submitted, with `*` as wildcard. Default: any."""
    submit_hosts: Annotated[list[str], Meta(examples=[["*gpu-login*"]])] = []
    """Hosts on which jobs must be submitted, with `*` as wildcard. Default: any."""

    __short_forms__ = short_form("`scheduler: slurm`.", {str: "type"})

    @property
    def kind(self) -> Literal["slurm", "local", "ssh"]:
        """How its jobs start their processes. Those of another package's scheduler run on one machine."""
        return self.type if self.type in ("slurm", "local", "ssh") else "local"  # type: ignore[return-value]


class SiteProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster, or this machine."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN, max_length=64, examples=["juwels"])]
    """Name for `--site`."""
    title: str = ""
    """Full name."""
    kind: Literal["system", "template", "base"] = "system"
    """A real `system`, a `template` with parameters, or a `base` that other profiles extend."""
    extends: Annotated[str | list[str], Meta(examples=[["slingshot", "nvidia"]])] = []
    """Profiles to extend. Later ones override earlier ones. They are looked up by name in the folders of the search
    path and in `bases/` below them. A profile's own name refers to the next profile of that name on the search
    path."""
    recorded: bool = False
    """Set in the copy that a run keeps, in which all layers are already merged."""
    status: Literal["verified", "documented", "draft"] = "draft"
    """`verified` on the system, `documented` from its published pages, or a `draft`."""
    lifecycle: Lifecycle = Lifecycle()
    """Whether the system is in service."""
    grade: Literal["A", "B", "C"] | None = None
    """Quality of the sources: `A` from the centre, `B` partly or outdated from it, `C` from a third party."""
    source: str | None = None
    """Source of the facts."""
    as_of: Day | None = None
    """Date on which the source was read, YYYY-MM-DD."""
    facts: Annotated[dict[str, Fact], Meta(examples=[{"queues": {"as_of": "2026-07-31", "grade": "A"}}])] = {}
    """Sources of individual groups of facts: keys of this file, with dots for nested keys, such as `queues` or
    `queues.gpu`. The longest match applies; everything else uses the keys above."""
    contact: str | None = None
    """Maintainer of the profile."""
    url: str | None = None
    """The site's documentation."""
    verified_on: Day | None = None
    """Date of the last test on the system."""
    verified_by: str | None = None
    """Who tested it."""
    published: list[Published] = []
    """The site's own examples and how the script differs from them. For readers."""
    unknown: list[str] = []
    """Facts that are omitted because no source was found. For readers."""
    parameters: dict[str, Parameter] = {}
    """Parameters of a template. `${param.NAME}` in any text is replaced with the value."""
    values: dict[str, str] = {}
    """Parameter values: in a profile that extends a template, or in the user's overlay."""
    detect: list[DetectionRule] = []
    """How to recognize the site's login nodes, most reliable rule first."""
    hosts: Hosts = Hosts()
    """Host names of the site."""
    scheduler: SchedulerProperties
    """The scheduler."""
    node_classes: dict[str, NodeClass]
    """Types of nodes, by name."""
    queues: dict[str, Queue]
    """Queues, by the name that job files use."""
    default_queue: str | None = None
    """Default queue of a job. Default: the first queue."""
    account: Account = Account()
    """Rules for the account."""
    billing: Billing = Billing()
    """How the site charges for jobs. For readers."""
    pytorch: Annotated[str | None, Meta(examples=["module load pytorch"])] = None
    """How to use the PyTorch that the centre itself provides. For readers. Unknown if omitted."""
    sbatch: Options = Options()
    """sbatch options that the site adds, renames, requires or forbids."""
    srun: Options = Options()
    """The same for srun, which starts the job step."""
    rules: Annotated[list[LinkedRule], ExtendsList] = []
    """Settings that require or exclude each other."""
    launchers: Annotated[
        dict[LauncherName, LauncherAdvice],
        Meta(examples=[{"torchrun": "discouraged"}]),
    ] = {}
    """The site's advice on each launcher."""
    versions: Annotated[dict[str, str], Meta(examples=[{"libfabric": "1.22"}])] = {}
    """Software available to every job, for conditions."""
    stacks: dict[str, Stack] = {}
    """Software stacks, by name."""
    options: dict[str, SiteOption] = {}
    """Settings that a job enables by name, with `options: [NAME]`."""
    login_shell: bool = False
    """Use a login shell for jobs: `#!/bin/bash -l`."""
    prelude: Annotated[list[PreludeStep], ExtendsList] = []
    """Steps before the training: load modules, source files, create folders."""
    env: Annotated[list[Setting], ExtendsList] = []
    """Variables of the training, with scope and condition."""
    fabric: Fabric = Fabric()
    """The fast network."""
    paths: Annotated[dict[str, Folder], Meta(examples=[{"scratch": "/scratch/${user}"}])] = {}
    """Folders that job files refer to as `${paths.NAME}`."""
    caches: Annotated[dict[str, Cache], Meta(examples=[{"huggingface": "${paths.scratch}/huggingface"}])] = {}
    """Caches to keep out of the home folder: `huggingface`, `torch`, `triton`, `inductor`, `miopen`, `cuda`, `xdg`,
    `pip`, or the name of a variable."""
    bad_nodes: UnusableNodes = UnusableNodes()
    """Nodes to exclude."""
    network: Network = Network()
    """How processes find each other."""
    launch: Launch = Launch()
    """How to start the job step."""
    internet: Internet = Internet()
    """Internet access of the compute nodes."""
    containers: Containers = Containers()
    """How images run, and the site's images."""
    defaults: Annotated[dict[str, Any], JobKeys] = {}
    """Job file keys that apply unless the job overrides them, such as `env`."""

    def queue_of(self, asked: str | None) -> str:
        """The name of the queue of a job that asks for this one, or for none; '' where the site has no queues."""
        return asked or self.default_queue or next(iter(self.queues), "")


class AgentLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What assistants may submit by `hpc-launch mcp`. Hours are those of one GPU, with all attempts of a job."""

    gpu_hours_per_job: Annotated[float, Meta(ge=0)]
    """The most that one job may use."""
    gpu_hours_per_day: Annotated[float, Meta(ge=0)]
    """The most that all jobs of the last 24 hours may use together."""
    jobs_per_day: Annotated[int, Meta(ge=0)] = 100
    """The most jobs, points of sweeps included."""
    sites: list[str] | None = None
    """The sites that may be used. Default: all."""
    queues: list[str] | None = None
    """The queues that may be used. Default: all."""


class Overlay(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's own `user.yaml`: settings that do not belong in a shared profile, such as the account."""

    defaults: dict[str, Any] = {}
    """Job file keys for every site."""
    sites: dict[str, dict[str, Any]] = {}
    """Job file keys for one site, by its name."""
    profiles: dict[str, dict[str, Any]] = {}
    """Site profile keys for one site, by its name, such as `paths`. This is the topmost layer of the profile."""
    agents: AgentLimits | None = None
    """What assistants may submit. Default: nothing."""
