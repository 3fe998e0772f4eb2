"""The descriptor of a launcher: everything other code asks about it. No code compares launcher names."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import ClassVar, Literal

from msgspec import Struct

from hpc_launch.base.findings import FindingCode
from hpc_launch.plan.launch_plan import StepPlan
from hpc_launch.plan.plan_draft import JobSize, PlanDraft
from hpc_launch.plugins.entry_points import BUILT_IN, Descriptor, guarded, load
from hpc_launch.runtimes.container_runtimes import ContainerPlan


class LauncherPlan(Struct, frozen=True):
    """How the launcher starts the processes. `options` are passed to it unchanged."""

    rendezvous: Literal["static", "c10d"]
    max_restarts: int
    options: tuple[str, ...]


class LauncherDescriptor(Descriptor, frozen=True, kw_only=True):
    """One launcher. Its template is `slurm_templates/launcher/NAME.sh.j2`."""

    group: ClassVar[str] = "launchers"
    template: str = ""
    """For one of another package: the text of its template, which defines the bash function `on_each_node`."""
    tasks: Literal["node", "process", "program"]
    """What the step starts: a launcher on each node, each process itself, or the program once on the first node."""
    plan: Callable[[PlanDraft], LauncherPlan]
    """Its settings from the job file, with a finding for each invalid one."""
    own_keys: frozenset[str] = frozenset()
    """The keys of `launcher:` that it accepts beside `name` and `options`."""
    own_step: Callable[[PlanDraft, JobSize, ContainerPlan | None], StepPlan | None] | None = None
    """A step that replaces the site's; None to use the site's."""
    needs_step: bool = False
    """Whether it is refused on this machine, where no step starts the processes."""
    elastic: bool = False
    """Whether it can continue with fewer nodes."""
    in_image: bool = False
    """Whether it runs inside the job's image, which therefore has to contain PyTorch."""
    prefixes_ranks: bool = False
    """Whether TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE sets the prefix of its log lines."""
    rank_variables: Literal["in_template", "each_rank", "within"] | None = None
    """Where the site's variables of a process are set: in its template, or in a script that it starts."""
    local_hosts: Callable[[int], tuple[str, ...]] | None = None
    """The names in its host file, by the number of nodes, for a run on this machine; None if it reads no host file."""
    process_group: bool = False
    """Whether its processes form a group that one of them cannot join again later."""
    named_ports: tuple[str, ...] = ()
    """Further ports that each node of a role holds for it."""
    port_range: int = 0
    """Ports in a row besides."""
    parts: tuple[str, ...] = ()
    """Files of `slurm_templates/parts/` that its template calls."""

    @property
    def reads_hostfile(self) -> bool:
        """Whether the job writes a host file for it."""
        return self.local_hosts is not None

    @property
    def logs_by_rank(self) -> bool:
        """Whether each process has its own log file, `node-N.rank-R.log`."""
        return self.tasks == "process"

    def tasks_per_node(self, processes_per_node: int) -> int:
        """How many tasks Slurm reserves on a node."""
        return 1 if self.tasks == "node" else processes_per_node


def descriptor(name: str) -> LauncherDescriptor:
    """The descriptor in the module of that name. Raises Refused for one of another package that does not work."""
    if name not in BUILT_IN["launchers"]:
        return load("launchers", name, LauncherDescriptor)
    found: LauncherDescriptor = import_module(f"hpc_launch.plan.launchers.{name}").DESCRIPTOR
    return found


def launcher(draft: PlanDraft) -> LauncherPlan:
    """The settings of the job's launcher, with a finding for each that it does not support."""
    job = draft.resolved.job
    mine = descriptor(job.launcher.name)
    for key in job.launcher.optional_keys():
        if key not in mine.own_keys:
            owners = [name for name in BUILT_IN["launchers"] if key in descriptor(name).own_keys]
            message = f"`{key}` is an option of {' and '.join(owners)}, not of {mine.name}"
            hint = f"remove it, or use `name: {owners[0]}`"
            draft.fault(FindingCode.OPTION_OF_OTHER_LAUNCHER, message, ("launcher", key), hint)
    if job.elastic and not mine.elastic:
        message = f"{mine.name} cannot continue with fewer nodes"
        hint = "set a fixed number of nodes, or use `launcher: torchrun`"
        draft.fault(FindingCode.LAUNCHER_NOT_ELASTIC, message, ("nodes",), hint)
    with guarded("launchers", mine.name, draft.resolved.origin("launcher").place):
        return mine.plan(draft)


def options_only(draft: PlanDraft) -> LauncherPlan:
    """The settings of a launcher that has no rendezvous and no restarts of its own."""
    return LauncherPlan("static", 0, tuple(draft.resolved.job.launcher.options))
