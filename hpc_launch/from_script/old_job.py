"""What the old script does, as found: software, variables, and which of its launch lines is the training.

Launch lines may also be programs that run side by side: the roles of the job, or a Ray cluster.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.from_script.script_text import NOT_KNOWN, Ledger, LineAccount, Value, Word, old_words, without_secrets
from hpc_launch.from_script.slurm_request import Request
from hpc_launch.from_script.variables import is_known


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


_OF_RAY = re.compile(
    r"(.+-)?port|head|block|address|node-ip-address|num-[cg]pus|temp-dir|.*dashboard.*|disable-usage-stats"
)
"""Options of `ray start` that `launcher: ray` decides."""


def role_name(launch: OldLaunch, taken: Collection[str]) -> str:
    """A name after the program: `vllm_serve` of `trl vllm-serve`."""
    first, *others = [word.text if word.value.known else "" for word in launch.words[:2]] or [""]
    text = others[0] if others and re.fullmatch(r"[a-z][\w-]*", others[0]) else re.sub(r".*/|\.\w+$", "", first)
    name = re.sub(r"\W+", "_", text.lower()).strip("_")[:24]
    name = name if re.match(r"[a-z]", name) and name != "train" else "server"
    return next(one for one in (name, *(f"{name}_{at}" for at in range(2, 10_000))) if one not in taken)


def with_roles(text: str, places: Mapping[str, str]) -> str:
    """A text in which roles are named instead of their hosts."""
    for place, name in places.items():
        text = text.replace(place, f"${{role.{name}.host}}")
    return text


def find_roles(job: OldJob, request: Request, ledger: Ledger) -> dict[str, OldLaunch]:
    """The roles by their names, the one that ends the job last; none for a script that starts one program, or several
    one after another. With the account of every launch line."""
    ray, steps = ([one for one in job.launches if one.of_ray is wanted] for wanted in (True, False))
    front, behind = ([one for one in steps if one.background is wanted] for wanted in (False, True))
    head = any(word.text == "--head" for one in ray for word in one.words)
    if len(front) != 1 or not (head or behind) or any(one.started == front[0].started for one in behind):
        return {}
    roles: dict[str, OldLaunch] = {}
    for launch in behind:
        same = next((name for name, one in roles.items() if one.started == launch.started), launch.role)
        if roles.setdefault(same, launch) is not launch:
            ledger.not_understood(launch.lines, f"`{same}` once more: use `replicas:`")
    roles["train"] = main = front[0]
    main.role = "train"
    if head:
        main.launcher, main.one_node, main.place, main.nodes, main.tasks = "ray", False, None, None, None
    for launch in ray:
        ledger.unnecessary(launch.lines, "`launcher: ray` starts the cluster")
        for option, value in old_words().commands["ray"].split(launch.words[2:]).options:
            if not _OF_RAY.fullmatch(option):
                ledger.not_understood([value.line], f"`--{option}` of ray start")
    for launch in roles.values():
        _name_hosts(launch, {place: name for place, name in job.places.items() if name != launch.role})
        single = "nodes" in request.texts and request.nodes == 1
        first = next(iter(roles)) if single else job.places.get(launch.place or "")
        launch.beside = first if first != launch.role else None
        launch.nodes = launch.nodes or (1 if launch.tasks == 1 else None)
        if launch.beside and request.gpus_per_node and launch.gpus_per_node is None:
            ledger.not_understood(launch.lines, "which GPUs of its node: give both roles there `gpus:`")
        elif not (single or launch.place or launch.launcher == "ray"):
            ledger.not_understood(launch.lines, "on which nodes: `nodes:` or `beside:`")
        size = launch_size(launch, request)
        if (launch.launcher, launch.program, size.starts_per_node) == ("srun", "command", 1):
            launch.launcher = "none"
        account_of(launch, size, ledger, launch.role)
    return roles


def _name_hosts(launch: OldLaunch, places: Mapping[str, str]) -> None:
    """Let a role name the others instead of their hosts."""

    def named(value: Value) -> Value:
        text = with_roles(value.text, places)
        return value if text == value.text else Value(text, value.known or is_known(text))

    launch.words = [replace(word, value=named(word.value)) for word in launch.words]
    launch.arguments = [replace(word, value=named(word.value)) for word in launch.arguments]
    launch.env = {name: named(value) for name, value in launch.env.items()}
