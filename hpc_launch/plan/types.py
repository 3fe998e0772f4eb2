"""The launch plan: all that the script will say, decided and with its origin, before a line of it is written."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hpc_launch.spec.origin import Origin
from hpc_launch.spec.text import Text


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


class Prelude(Struct, frozen=True):
    """One step that sets the software up. `argument` is a file, a module, an environment's name or folder."""

    kind: Literal["source", "module", "conda", "venv"]
    argument: Text
    origin: Origin


class Program(Struct, frozen=True):
    """What the launcher starts: a Python file, a Python module or a command, and its arguments."""

    kind: Literal["script", "module", "command"]
    words: tuple[Text, ...]
    argument_lines: tuple[tuple[Text, ...], ...]
    """The arguments as they stand on the lines of the script: an option with its values on one."""


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
    launcher: Literal["torchrun", "deepspeed", "srun"]
    launcher_options: tuple[str, ...]
    launcher_origin: Origin
    rendezvous: Literal["static", "c10d"]
    max_restarts: int
    srun_options: tuple[str, ...]
    directives: tuple[Directive, ...]
    prelude: tuple[Prelude, ...]
    variables: tuple[Variable, ...]
    python: Text
    program: Program
    workdir: str
    runs_folder: str
    master_suffix: str
    ports: tuple[int, int]
    requeue: bool
    progress: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    container: ContainerPlan | None = None

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
            "progress": dict(self.progress),
            "secrets": list(self.secrets),
        }
