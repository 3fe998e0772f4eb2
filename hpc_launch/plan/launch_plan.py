"""The launch plan: everything that the script contains, with its origin, before any of it is rendered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.job.document import Origin
from hpc_launch.job.shell_text import Text
from hpc_launch.job.type_hints import LauncherName
from hpc_launch.job.units import counted
from hpc_launch.plan.recorded_parts import CheckpointPlan, CodePlan, NotifyPlan, RetryPlan
from hpc_launch.runtimes.container_runtimes import ContainerPlan
from hpc_launch.sites.network import JobHost, MasterAddress

Line = tuple[Text, ...]
"""Words that share one line of the script."""


class Directive(Struct, frozen=True):
    """One `#SBATCH` line: the long option, and its value unless it is a bare flag."""

    option: str
    value: str | None
    origin: Origin

    def __str__(self) -> str:
        if self.value is None:
            return f"--{self.option}"
        # sbatch removes quotes itself; values that need more than quotes are refused (plan/sbatch_options.py).
        return f'--{self.option}="{self.value}"' if " " in self.value else f"--{self.option}={self.value}"


class Variable(Struct, frozen=True):
    """One environment variable of the training; None unsets it."""

    name: str
    value: Text | None
    origin: Origin
    before: bool = False
    """Whether the value is prepended to the variable, separated by a colon."""
    default: bool = False
    """Whether the value counts only where the submitting shell did not set the variable. It needs no quotes."""
    cache: Text | None = None
    """For a cache that is only a default: its private folder, without which the variable is not set."""


class SiteStep(Struct, frozen=True):
    """One step of the site's prelude: the words of a command, a folder that nobody else may own, a file to source,
    a variable, or a raw line."""

    kind: Literal["command", "private_folder", "source", "variable", "raw"]
    origin: Origin
    words: tuple[Text, ...] = ()
    variable: Variable | None = None
    may_fail: bool = False


class SiteSettings(Struct, frozen=True):
    """The site's steps around the training, by where they run."""

    login_shell: bool = False
    steps: tuple[SiteStep, ...] = ()
    """In the job's shell, before anything else."""
    on_nodes: tuple[SiteStep, ...] = ()
    """Once on each node, before the launcher."""
    inside: tuple[SiteStep, ...] = ()
    """Inside the image, before the training; with `launcher: srun` in each process."""
    node_steps: tuple[SiteStep, ...] = ()
    """On each node, in the shell that starts the launcher: variables, and limits that Slurm may not propagate."""
    rank_variables: tuple[Variable, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks about the profile for readers of the script."""


class Prelude(Struct, frozen=True):
    """One step of the software set-up. `argument` is a file, a module, or the name or folder of an environment."""

    kind: Literal["source", "module", "conda", "venv"]
    argument: Text
    origin: Origin


class Program(Struct, frozen=True):
    """What the launcher starts: a Python file, a Python module or a command, and its arguments."""

    kind: Literal["script", "module", "command"]
    words: tuple[Text, ...]
    argument_lines: tuple[Line, ...]
    """The arguments by line of the script: an option and its values share a line."""
    resume_lines: tuple[Line, ...] = ()
    """Arguments that are added when a checkpoint is found."""


class Entry(Struct, frozen=True):
    """One value of a configuration, or one flag or argument, that hpc-launch derives."""

    key: str
    value: str | None
    """None: a bare flag."""
    origin: Origin


class StrategyPlan(Struct, frozen=True):
    """The configuration file that the script writes for the strategy, and the flags that it adds to the arguments."""

    file: str | None
    """The file name of the configuration in the attempt folder."""
    text: Text
    origin: Origin
    entries: tuple[Entry, ...] = ()
    """The values of the configuration, for `explain`."""
    flags: tuple[Entry, ...] = ()
    """Arguments that precede those of the job file."""

    def explained(self) -> Iterator[tuple[str, Entry]]:
        """Each value with its kind for `explain`: `file` or `argument`."""
        yield from (("file", replace(entry, key=f"{self.file}:{entry.key}")) for entry in self.entries)
        yield from (("argument", flag) for flag in self.flags)


class StrategyResult(Struct, frozen=True):
    """The plan, its variables, and in `names` the values of `${strategy.…}` and `${parallel.…}`."""

    plan: StrategyPlan | None = None
    variables: tuple[Variable, ...] = ()
    names: dict[str, str] = {}


class Continuation(Struct, frozen=True):
    """How the training is warned before its end, and how the next attempt continues."""

    warn: Literal["file", "USR1", "USR2", "TERM", "INT", "HUP"] = "file"
    guarded: bool = False
    """Whether a shell wraps the launcher on each node: it sends the signal, and treats the SIGTERM of a preemption
    as a warning."""
    checkpoint: CheckpointPlan | None = None
    followed: bool = False
    """Whether a complete checkpoint is announced while the job runs."""
    resume_variables: tuple[Variable, ...] = ()


class WatchPlan(Struct, frozen=True):
    """Settings of the watcher on each node, in seconds; 0 means never."""

    hang_after_s: int
    busy_after_s: int
    sample_every_s: int
    phases: bool = True
    """Whether the processes report the phases of their start."""
    program: bool = False
    """Whether a program that starts its processes itself is watched as a whole."""


class NodeCheckPlan(Struct, frozen=True):
    """What the node check compares the nodes with: options of the programs in `agent/` that run it."""

    expects: tuple[str, ...]
    only: bool = False
    """Whether the job ends after the check."""
    inside: bool = False
    """Whether a part of it runs inside the job's image."""
    gpus_per_task: int = 0
    """The GPUs that its task on each node needs, if the job requests them by task."""


class StepPlan(Struct, frozen=True):
    """The step that starts the command of each node, and its options."""

    kind: Literal["srun", "ibrun", "mpirun", "local", "ssh", "pdsh", "once", "roles"]
    options: tuple[str, ...] = ()
    ordered: bool = False
    """Whether the ranks follow the switches that the nodes are connected to, rather than the nodes' names."""
    hydra: bool = False
    """Whether mpirun is MPICH's (Hydra) and not Open MPI's."""


class StagePlan(Struct, frozen=True):
    """Where the nodes put their own copy of the environment, image or data."""

    how: Literal["auto", "node", "copy", "mount", "off", "shard"]
    folders: tuple[Text, ...] = ()
    """Candidates, in order. They may contain variables that only a node knows."""
    name: str = ""
    """The variable that names the copy on a node."""
    original: Text = ()
    """The image, interpreter or data that it stands for; empty where PATH names the copy."""
    unsupported: str = ""
    """Why no copy can be made. The script says so."""
    origin: Origin = Origin("default")


class CopyPlan(Struct, frozen=True):
    """What each host gets, where the hosts share no folders."""

    workdir: bool
    """Whether it gets the working folder."""
    exclude: tuple[str, ...]
    limit_mib: int
    own_checkpoints: bool
    """Whether each host has a checkpoint folder of its own."""


class RoleGpus(Struct, frozen=True):
    """Which of a node's GPUs a role has, where others run on the same node."""

    first: int
    of: int
    """The GPUs of the job on each node."""


class RolePlan(Struct, frozen=True):
    """One role of a job: the plan of its own script, and what agent/roles.py has to know about it."""

    name: str
    plan: LaunchPlan
    record: dict[str, Any]


class LaunchPlan(Struct, frozen=True):
    """One job, ready to be rendered. Times are in seconds."""

    name: str
    site: str
    scheduler: Literal["slurm", "local", "ssh"]
    """How the script starts processes."""
    submitted_to: str
    """The name of the scheduler that gets it."""
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
    binding: Entry | None
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
    data: StagePlan | None = None
    stripe: tuple[str, ...] = ()
    """Options of `lfs setstripe` for a new checkpoint folder."""
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
    roles: tuple[RolePlan, ...] = ()
    """The programs of a job that has several; the one that ends it comes first."""
    role: str = ""
    """The role that the plan is for, in a job with several."""
    role_gpus: RoleGpus | None = None

    @property
    def uneven(self) -> bool:
        """Whether the hosts have different numbers of processes."""
        return len({host.slots for host in self.hosts}) > 1

    @property
    def slots(self) -> tuple[int, ...]:
        """Processes of each host where hosts differ; empty if each node has `processes_per_node`."""
        return tuple(host.slots for host in self.hosts) if self.uneven else ()

    @property
    def gpus(self) -> int:
        """The GPUs of the nodes and spares: where hosts differ, one for each of their slots."""
        own = sum(self.slots) if self.uneven and self.gpus_per_node else self.nodes * self.gpus_per_node
        return own + self.spares * self.gpus_per_node

    @property
    def shape(self) -> str:
        """The processes of the nodes, for readers: `x 4 processes`; or the roles."""
        if self.roles:
            return f"with {counted(len(self.roles), 'role')}"
        if self.uneven:
            return f"with {' + '.join(map(str, self.slots))} processes"
        return f"x {counted(self.processes_per_node, 'process', 'processes')}"

    @property
    def elastic(self) -> bool:
        """Whether the run can continue with fewer nodes."""
        return self.fewest_nodes < self.nodes

    def option(self, name: str) -> str | None:
        """The value of an sbatch option in the script."""
        return next((one.value for one in self.directives if one.option == name), None)

    @property
    def cluster(self) -> str | None:
        """The cluster that the job goes to, where a login reaches several (`--clusters`)."""
        return self.option("clusters")

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
        """The total number of processes; the maximum for an elastic run. With roles, of the one that ends the job."""
        if self.roles:
            main = self.roles[0].plan
            return main.nodes * main.processes_per_node
        return sum(host.slots for host in self.hosts) if self.hosts else self.nodes * self.processes_per_node
