"""What the old script does, as found: software, variables and the launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hpc_launch.from_script.values import Value, Word

LauncherKind = Literal["torchrun", "deepspeed", "srun", "none"]


@dataclass
class OldContainer:
    """A container of the old script."""

    runtime: Literal["apptainer", "singularity", "pyxis"]
    image: str
    binds: list[str] = field(default_factory=list)
    workdir: str | None = None
    home: bool | None = None
    writable: bool = False
    options: list[str] = field(default_factory=list)


@dataclass
class OldLaunch:
    """One command line that starts a program, unwrapped from srun, containers and launchers."""

    lines: range
    launcher: LauncherKind = "none"
    program: Literal["script", "module", "command"] = "command"
    words: list[Word] = field(default_factory=list)
    """The script or module, or all words of a command."""
    arguments: list[Word] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    """The launcher's own options that stay."""
    workdir: str | None = None
    """The folder in which the line stands."""
    job_env: dict[str, tuple[Value, int]] = field(default_factory=dict)
    """The exported variables there."""
    by_srun: bool = False
    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    processes_per_node: int | None = None
    """As the launcher's own options say."""
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    one_node: bool = False
    """Whether its srun names one node, as in a loop over nodes."""
    max_restarts: int | None = None
    c10d: bool = False
    pdsh: bool = False
    container: OldContainer | None = None
    env: dict[str, Value] = field(default_factory=dict)
    python: str | None = None
    mixed_precision: str | None = None
    doubts: list[tuple[int, str]] = field(default_factory=list)
    """Lines with parts that were not understood."""
    keys: list[str] = field(default_factory=list)

    @property
    def distributed(self) -> bool:
        """Whether it starts more than one process, or can."""
        return self.launcher != "none"


@dataclass
class OldJob:
    """Everything found in the body of the script."""

    modules: list[str] = field(default_factory=list)
    purge: Literal["purge", "force-purge", "reset"] | None = None
    module_use: list[str] = field(default_factory=list)
    module_unload: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    conda: str | None = None
    venv: str | None = None
    env: dict[str, tuple[Value, int]] = field(default_factory=dict)
    prepend: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    mkdir: list[str] = field(default_factory=list)
    ulimit: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    last_folder: str | None = None
    """The folder before the last `cd`."""
    folders: list[str] = field(default_factory=list)
    """The stack of `pushd`."""
    suffix: str | None = None
    """Appended to the first host's name for the fast network."""
    launches: list[OldLaunch] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Variables that the job does not need, with the reason."""
