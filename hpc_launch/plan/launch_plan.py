"""The launch plan: all that the script will say, decided and with its origin, before a line of it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.plan.code_folder import CodePlan
from hpc_launch.plan.retry_plan import RetryPlan
from hpc_launch.sites.network import Master
from hpc_launch.spec.origin import Origin
from hpc_launch.spec.shell_text import Text

Line = tuple[Text, ...]
"""Words that stand together on a line of the script."""


class Directive(Struct, frozen=True):
    """One `#SBATCH` line: the long option, and its value unless it is a bare flag."""

    option: str
    value: str | None
    origin: Origin

    def __str__(self) -> str:
        if self.value is None:
            return f"--{self.option}"
        # sbatch takes quotes away itself; what would need more than quotes is refused (plan.directives).
        return f'--{self.option}="{self.value}"' if " " in self.value else f"--{self.option}={self.value}"


class Variable(Struct, frozen=True):
    """One environment variable of the training; None unsets it."""

    name: str
    value: Text | None
    origin: Origin
    before: bool = False
    """Whether the value goes before what the variable holds already, with a colon."""


class SiteStep(Struct, frozen=True):
    """One step of the site's prelude: the words of a command, a file to source, a variable, or a raw line."""

    kind: Literal["command", "source", "variable", "raw"]
    origin: Origin
    words: tuple[Text, ...] = ()
    variable: Variable | None = None
    may_fail: bool = False


class SiteSettings(Struct, frozen=True):
    """What the site does around the training, by where it happens."""

    login_shell: bool = False
    steps: tuple[SiteStep, ...] = ()
    """In the job's shell, first of all."""
    on_nodes: tuple[SiteStep, ...] = ()
    """Once on each node, before the launcher."""
    inside: tuple[SiteStep, ...] = ()
    """Inside the image, before the training; with `launcher: srun` in each process."""
    node_steps: tuple[SiteStep, ...] = ()
    """On each node, in the shell that starts the launcher: variables, and limits that Slurm may not hand on."""
    rank_variables: tuple[Variable, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader of the script should know about the profile."""


class Prelude(Struct, frozen=True):
    """One step that sets the software up. `argument` is a file, a module, an environment's name or folder."""

    kind: Literal["source", "module", "conda", "venv"]
    argument: Text
    origin: Origin


class Program(Struct, frozen=True):
    """What the launcher starts: a Python file, a Python module or a command, and its arguments."""

    kind: Literal["script", "module", "command"]
    words: tuple[Text, ...]
    argument_lines: tuple[Line, ...]
    """The arguments as they stand on the lines of the script: an option with its values on one."""
    resume_lines: tuple[Line, ...] = ()
    """Arguments that are added where a checkpoint is found."""


class Entry(Struct, frozen=True):
    """One value of a configuration, or one flag, that `strategy:` and `parallel:` came to."""

    key: str
    value: str | None
    """None: a bare flag."""
    origin: Origin


class StrategyPlan(Struct, frozen=True):
    """What the script writes for the library that spreads the training, and what it adds to the arguments."""

    file: str | None
    """The name of the configuration in the attempt's folder."""
    text: Text
    origin: Origin
    entries: tuple[Entry, ...] = ()
    """The values of the configuration, for `explain`."""
    flags: tuple[Entry, ...] = ()
    """Arguments that go before those of the job file."""

    def explained(self) -> Iterator[tuple[str, Entry]]:
        """Each value with its kind for `explain`: `file` or `argument`."""
        yield from (("file", replace(entry, key=f"{self.file}:{entry.key}")) for entry in self.entries)
        yield from (("argument", flag) for flag in self.flags)


class CheckpointPlan(Struct, frozen=True):
    """Where checkpoints are and how a whole one is told; `spec.checkpoint` says what each is for."""

    folder: Text
    pattern: str
    bash_pattern: str
    """The same as a POSIX extended regular expression."""
    steps: bool
    """Whether the pattern has a group for the step."""
    complete: tuple[str, ...]
    latest: str | None

    def as_json(self) -> dict[str, object]:
        """The rule for those who follow the run; a null in `dir` stands for the run folder."""
        folder = [part if isinstance(part, str) else None for part in self.folder]
        return {"dir": folder, "pattern": self.pattern, "complete": list(self.complete), "latest": self.latest}


class Continuation(Struct, frozen=True):
    """How the training is warned before its end, and how the next attempt goes on."""

    warn: Literal["file", "USR1", "USR2", "TERM", "INT", "HUP"] = "file"
    guarded: bool = False
    """Whether a shell stands before the launcher on each node: it sends the signal, and takes a preemption's SIGTERM
    for a warning."""
    checkpoint: CheckpointPlan | None = None
    resume_variables: tuple[Variable, ...] = ()

    @property
    def resume_names(self) -> frozenset[str]:
        """The variables that are set where a checkpoint is found."""
        return frozenset(variable.name for variable in self.resume_variables)

    def as_json(self) -> dict[str, object] | None:
        """The rule for finding checkpoints, for those who follow the run."""
        return self.checkpoint.as_json() if self.checkpoint else None


class WatchPlan(Struct, frozen=True):
    """What the watcher on each node is told, in seconds; 0 stands for never."""

    hang_after_s: int
    busy_after_s: int
    sample_every_s: int


class ContainerPlan(Struct, frozen=True):
    """The image and how it is run."""

    runtime: Literal["apptainer", "singularity", "pyxis", "edf", "podman-hpc", "shifter", "charliecloud"]
    image: str
    binds: tuple[Text, ...]
    """`PATH` or `PATH:INSIDE`."""
    workdir: str
    gpus: Literal["nvidia", "amd"] | None
    home: bool
    writable: bool
    options: tuple[str, ...]
    variables: tuple[str, ...]
    """Names that must have the job's value inside, whatever the image says."""


class StepPlan(Struct, frozen=True):
    """What starts the commands of the nodes, and its own options."""

    kind: Literal["srun", "ibrun", "mpirun", "local", "pdsh", "once"]
    options: tuple[str, ...] = ()
    hydra: bool = False
    """Whether mpirun is that of MPICH and its kin, not Open MPI's."""


class LaunchPlan(Struct, frozen=True):
    """One job, ready to be written down. Times are seconds."""

    name: str
    site: str
    scheduler: Literal["slurm", "local"]
    nodes: int
    """The most, for an elastic run."""
    fewest_nodes: int
    processes_per_node: int
    gpus_per_node: int
    cpus_per_node: int | None
    time_limit_s: int | None
    signal_before_s: int | None
    launcher: Literal["torchrun", "deepspeed", "srun", "none"]
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
    master: Master
    ports: tuple[int, int]
    requeue: bool
    progress: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    container: ContainerPlan | None = None
    continuation: Continuation = Continuation()
    recovery: RetryPlan = RetryPlan()
    code: CodePlan | None = None
    strategy: StrategyPlan | None = None
    watch: WatchPlan | None = None
    fabric: str | None = None
    """The family of the fast network between the nodes."""
    around: SiteSettings = SiteSettings()

    @property
    def elastic(self) -> bool:
        """Whether the run goes on with fewer nodes."""
        return self.fewest_nodes < self.nodes

    @property
    def world_size(self) -> int:
        """Processes in all; of an elastic run the most."""
        return self.nodes * self.processes_per_node

    def as_json(self) -> dict[str, object]:
        """What `plan.json` keeps of it for those who follow the run."""
        return {
            "name": self.name,
            "site": self.site,
            "scheduler": self.scheduler,
            "nodes": self.nodes,
            "processes_per_node": self.processes_per_node,
            "gpus_per_node": self.gpus_per_node,
            "world_size": self.world_size,
            "launcher": self.launcher,
            "time_limit_s": self.time_limit_s,
            "signal_before_s": self.signal_before_s,
            "requeue": self.requeue,
            "fabric": self.fabric,
            "progress": dict(self.progress),
            "checkpoint": self.continuation.as_json(),
            "recovery": self.recovery.as_json(),
            "code": self.code.as_json() if self.code else None,
            "secrets": list(self.secrets),
        }
