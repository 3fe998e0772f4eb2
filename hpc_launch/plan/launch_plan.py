"""The launch plan: everything that the script contains, with its origin, before any of it is rendered."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hpc_launch.job.launcher import LauncherName
from hpc_launch.job.origin import Origin
from hpc_launch.job.shell_text import Text
from hpc_launch.plan.plan_parts import (
    ContainerPlan,
    Continuation,
    CopyPlan,
    Directive,
    NodeCheckPlan,
    Prelude,
    Program,
    SiteSettings,
    StagePlan,
    StepPlan,
    StrategyPlan,
    Variable,
    WatchPlan,
)
from hpc_launch.plan.recorded_parts import CodePlan, NotifyPlan, RetryPlan
from hpc_launch.sites.network import JobHost, MasterAddress


class LaunchPlan(Struct, frozen=True):
    """One job, ready to be rendered. Times are in seconds."""

    name: str
    site: str
    scheduler: Literal["slurm", "local", "ssh"]
    nodes: int
    """The maximum, for an elastic run."""
    fewest_nodes: int
    spares: int
    processes_per_node: int
    gpus_per_node: int
    cpus_per_node: int | None
    time_limit_s: int | None
    signal_before_s: int | None
    launcher: LauncherName
    launcher_options: tuple[str, ...]
    launcher_origin: Origin
    rendezvous: Literal["static", "c10d"]
    max_restarts: int
    step: StepPlan
    directives: tuple[Directive, ...]
    prelude: tuple[Prelude, ...]
    variables: tuple[Variable, ...]
    python: Text
    program: Program
    workdir: str
    runs_folder: str
    master: MasterAddress
    ports: tuple[int, int]
    requeue: bool
    """Whether Slurm itself may requeue the job."""
    progress: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    notify: NotifyPlan | None = None
    container: ContainerPlan | None = None
    continuation: Continuation = Continuation()
    recovery: RetryPlan = RetryPlan()
    code: CodePlan | None = None
    strategy: StrategyPlan | None = None
    watch: WatchPlan | None = None
    stage: StagePlan | None = None
    node_check: NodeCheckPlan | None = None
    fabric: str | None = None
    """The type of the high-speed network between the nodes."""
    around: SiteSettings = SiteSettings()
    hosts: tuple[JobHost, ...] = ()
    """The hosts and their processes, without a scheduler that chooses nodes."""
    spare_hosts: tuple[JobHost, ...] = ()
    """Hosts that the job holds besides, without processes."""
    shared_hosts: bool = False
    """Whether other runs may use the same hosts at the same time."""
    copies: CopyPlan | None = None
    """What hosts get that share no folders."""

    @property
    def uneven(self) -> bool:
        """Whether the hosts have different numbers of processes."""
        return len({host.slots for host in self.hosts}) > 1

    @property
    def elastic(self) -> bool:
        """Whether the run can continue with fewer nodes."""
        return self.fewest_nodes < self.nodes

    @property
    def expedited(self) -> bool:
        """Whether Slurm requeues the job ahead of all others (`--requeue=expedite`)."""
        return any(one.option == "requeue" and one.value for one in self.directives)

    @property
    def chooses_nodes(self) -> bool:
        """Whether the end hook chooses the nodes of the next attempt in the job: with spares, or an elastic number."""
        return self.scheduler == "slurm" and (self.elastic or self.spares > 0)

    @property
    def heartbeat(self) -> bool:
        """Whether a node that falls silent ends the attempt.

        An elastic run without another attempt is left to its launcher, which continues by itself, but later.
        """
        retry = self.recovery.retry
        again = self.spares > 0 or (retry.in_allocation == "auto" and retry.max_attempts > 1)
        return self.chooses_nodes and self.watch is not None and again

    @property
    def world_size(self) -> int:
        """The total number of processes; the maximum for an elastic run."""
        return sum(host.slots for host in self.hosts) if self.hosts else self.nodes * self.processes_per_node
