"""The parts of the launch plan, each with what the script needs of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.job.origin import Origin
from hpc_launch.job.shell_text import Text

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
    """One value of a configuration, or one flag, derived from `strategy:` and `parallel:`."""

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


class CheckpointPlan(Struct, frozen=True):
    """Where checkpoints are and when one is complete; `spec.checkpoint` describes each field."""

    folder: Text
    pattern: str
    bash_pattern: str
    """The same as a POSIX extended regular expression."""
    steps: bool
    """Whether the pattern has a group for the step."""
    complete: tuple[str, ...]
    latest: str | None
    followed: bool = False


class Continuation(Struct, frozen=True):
    """How the training is warned before its end, and how the next attempt continues."""

    warn: Literal["file", "USR1", "USR2", "TERM", "INT", "HUP"] = "file"
    guarded: bool = False
    """Whether a shell wraps the launcher on each node: it sends the signal, and treats the SIGTERM of a preemption
    as a warning."""
    checkpoint: CheckpointPlan | None = None
    resume_variables: tuple[Variable, ...] = ()

    @property
    def resume_names(self) -> frozenset[str]:
        """The variables that are set when a checkpoint is found."""
        return frozenset(variable.name for variable in self.resume_variables)


class WatchPlan(Struct, frozen=True):
    """Settings of the watcher on each node, in seconds; 0 means never."""

    hang_after_s: int
    busy_after_s: int
    sample_every_s: int
    phases: bool = True
    """Whether the processes report the phases of their start."""


class NodeCheckPlan(Struct, frozen=True):
    """What the node check compares the nodes with: options of the programs in `agent/` that run it."""

    expects: tuple[str, ...]
    only: bool = False
    """Whether the job ends after the check."""
    inside: bool = False
    """Whether a part of it runs inside the job's image."""
    gpus_per_task: int = 0
    """The GPUs that its task on each node needs, if the job requests them by task."""


class ContainerPlan(Struct, frozen=True):
    """The image and how to run it."""

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
    """Variables that keep the job's value inside the container, whatever the image sets."""

    @property
    def started_by_srun(self) -> bool:
        """Whether the runtime is an option of srun."""
        return self.runtime in ("pyxis", "edf")


class StagePlan(Struct, frozen=True):
    """Where the nodes put their own copy of the environment or image."""

    how: Literal["auto", "node"]
    folders: tuple[Text, ...] = ()
    """Candidates, in order. They may contain variables that only a node knows."""
    image: bool = False
    """Whether the image is copied, else the Python environment."""
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


class StepPlan(Struct, frozen=True):
    """The step that starts the command of each node, and its options."""

    kind: Literal["srun", "ibrun", "mpirun", "local", "ssh", "pdsh", "once"]
    options: tuple[str, ...] = ()
    hydra: bool = False
    """Whether mpirun is MPICH's (Hydra) and not Open MPI's."""
