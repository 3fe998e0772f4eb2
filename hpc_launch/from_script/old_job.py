"""What the old script does, as found: software, variables, and which of its launch lines is the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from hpc_launch.from_script.script_text import NOT_KNOWN, Ledger, LineAccount, Value, Word, without_secrets
from hpc_launch.from_script.slurm_request import Request


@dataclass
class OldLaunch:
    """One command line that starts a program, unwrapped from srun, containers and launchers."""

    lines: range
    launcher: Literal["torchrun", "deepspeed", "srun", "ray", "none"] = "none"
    program: Literal["script", "module", "command"] = "command"
    words: list[Word] = field(default_factory=list)
    """The script or module, or all words of a command."""
    arguments: list[Word] = field(default_factory=list)
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
    place: str | None = None
    """The nodes that its srun names, as text."""
    background: bool = False
    """Whether the script goes on while it runs."""
    role: str = ""
    """The name of its role, if others run beside it."""
    beside: str | None = None
    max_restarts: int | None = None
    container: dict[str, Any] | None = None
    """`container:` of the job file."""
    env: dict[str, Value] = field(default_factory=dict)
    python: str | None = None
    doubts: list[tuple[int, str]] = field(default_factory=list)
    """Lines with parts that were not understood."""

    @property
    def of_ray(self) -> bool:
        """Whether it starts a node of a Ray cluster."""
        return [word.text for word in self.words[:2]] == ["ray", "start"]

    @property
    def started(self) -> list[str]:
        """What it starts, to compare two of them."""
        return [self.launcher, *(word.text for word in (*self.words, *self.arguments))]

    @property
    def keys(self) -> list[str]:
        """Where its content is in the job file."""
        found = {"launcher": self.launcher != "none", self.program: True, "args": self.arguments, "env": self.env}
        found |= {"environment.python": self.python, "container": self.container}
        return [key for key, holds in found.items() if holds]

    def doubt(self, word: Word, why: str) -> None:
        """A part that was not understood."""
        self.doubts.append((word.line, why))


@dataclass
class OldJob:
    """Everything found in the body of the script."""

    software: dict[str, Any] = field(default_factory=dict)
    """`environment:` of the job file."""
    env: dict[str, tuple[Value, int]] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    workdir: str | None = None
    suffix: str | None = None
    """Appended to the first host's name for the fast network."""
    launches: list[OldLaunch] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    """The names of the roles that run in the background on one node each, by the text that names it."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Variables that the job does not need, with the reason."""


class LaunchSize(Struct, frozen=True):
    """How the old script starts its training."""

    nodes: int
    starts_per_node: int
    """How often srun or mpirun starts the launcher or the program on each node."""
    processes_per_node: int
    """Processes of the training on each node."""
    gpus_per_node: int
    cpus_per_node: int | None


class OldScript(Struct, frozen=True):
    """What a script requests, sets up and starts."""

    name: str
    folder: str
    request: Request
    job: OldJob
    launch: OldLaunch | None
    size: LaunchSize | None
    """Of a script with roles: of the whole job."""
    roles: Mapping[str, OldLaunch]
    """The programs by their roles, of a script that starts several side by side; `launch` ends the job."""
    accounts: tuple[LineAccount, ...]
    followed: Mapping[str, tuple[LineAccount, ...]]
    """Accounts of local shell files that the launch line starts."""
    remarks: list[str]

    def of(self, outcome: str) -> list[LineAccount]:
        """The accounts with one outcome."""
        return [account for account in self.accounts if account.outcome == outcome]


def launch_size(launch: OldLaunch, request: Request) -> LaunchSize:
    """The size of a launch, from its own options and the directives."""
    nodes, starts = request.nodes, 1
    if launch.by_srun and not launch.one_node:
        nodes = min(launch.nodes, request.nodes) if launch.nodes else request.nodes
        starts = launch.tasks_per_node or request.tasks_per_node
        if launch.tasks and launch.tasks_per_node:
            nodes = nodes if launch.nodes else max(launch.tasks // starts, 1)
        elif launch.tasks:
            nodes = min(nodes, launch.tasks)
            starts = max(launch.tasks // nodes, 1)
    processes = launch.processes_per_node if launch.processes_per_node is not None else starts
    return LaunchSize(
        nodes=nodes,
        starts_per_node=1 if launch.launcher == "none" else starts,
        processes_per_node=processes,
        gpus_per_node=request.gpus_per_node if launch.gpus_per_node is None else launch.gpus_per_node,
        cpus_per_node=launch.cpus_per_task * starts if launch.cpus_per_task else request.cpus_per_node,
    )


def choose(job: OldJob, request: Request, ledger: Ledger) -> OldLaunch | None:
    """The training: the launch of the most processes, of several the last; the account of every launch line."""
    if not job.launches:
        return None

    def weight(launch: OldLaunch) -> tuple[bool, int, bool]:
        size = launch_size(launch, request)
        own = launch.program in {"script", "module"} or launch.processes_per_node is not None
        return launch.launcher != "none" and own, size.nodes * size.processes_per_node, own

    chosen = max(job.launches, key=weight)
    for launch in job.launches:
        if launch is chosen:
            account_of(launch, launch_size(launch, request), ledger)
        elif launch.started == chosen.started:
            ledger.unnecessary(launch.lines, "the same program on another node: the step starts it on all of them")
        else:
            ledger.not_understood(launch.lines, "another program: a job file starts one")
    return chosen


def account_of(launch: OldLaunch, size: LaunchSize, ledger: Ledger, role: str = "") -> None:
    """The account of the training's lines, with the parts that were not understood and values that the text does not
    decide."""
    ledger.taken(launch.lines, *([f"roles.{role}"] if role else launch.keys))
    for line, why in launch.doubts:
        ledger.not_understood([line], why)
    for word in (*launch.words, *launch.arguments):
        if not word.value.known:
            line = word.line if word.line in launch.lines else launch.lines[0]
            ledger.not_understood([line], f"`{without_secrets(word.text)[:60]}` {NOT_KNOWN}")
    for name in (name for name, value in launch.env.items() if not value.known):
        ledger.not_understood(launch.lines[:1], f"{name} {NOT_KNOWN}")
    if launch.by_srun and not launch.one_node and launch.tasks not in {None, size.nodes * size.starts_per_node}:
        why = f"{launch.tasks} tasks on {size.nodes} nodes: a job file starts as many on each"
        ledger.not_understood(launch.lines[:1], why)
