"""Which of a script's launch lines is its training, and the size of it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hpc_launch.from_script.line_accounts import Ledger
from hpc_launch.from_script.old_job import OldLaunch
from hpc_launch.from_script.request import Request


class LaunchSize(Struct, frozen=True):
    """How the old script starts its training."""

    nodes: int
    starts_per_node: int
    """How often srun or mpirun starts the launcher or the program on each node."""
    processes_per_node: int
    """Processes of the training on each node."""
    gpus_per_node: int
    cpus_per_node: int | None
    once: bool
    """Whether the program starts once, on the first node."""


def choose(launches: Sequence[OldLaunch], request: Request, ledger: Ledger) -> OldLaunch | None:
    """The training: the launch of the most processes, of several the last; the account of every launch line."""
    if not launches:
        return None

    def weight(launch: OldLaunch) -> tuple[bool, int, bool]:
        size = launch_size(launch, request)
        own = launch.program in {"script", "module"} or launch.processes_per_node is not None
        return launch.distributed and own, size.nodes * size.processes_per_node, own

    chosen = max(launches, key=weight)
    for launch in launches:
        if launch is chosen:
            ledger.taken(launch.lines, *dict.fromkeys(launch.keys))
            for line, why in launch.doubts:
                ledger.not_understood([line], why)
            _values(launch, ledger)
            size = launch_size(launch, request)
            if launch.by_srun and not launch.one_node and launch.tasks not in {None, size.nodes * size.starts_per_node}:
                why = f"{launch.tasks} tasks on {size.nodes} nodes: a job file starts as many on each"
                ledger.not_understood(launch.lines[:1], why)
        elif _same(launch, chosen):
            ledger.unnecessary(launch.lines, "the same program on another node: the step starts it on all of them")
        else:
            ledger.not_understood(launch.lines, "another program: a job file starts one")
    return chosen


def _same(launch: OldLaunch, chosen: OldLaunch) -> bool:
    ours = [word.text for word in (*launch.words, *launch.arguments)]
    return launch.launcher == chosen.launcher and ours == [word.text for word in (*chosen.words, *chosen.arguments)]


def _values(launch: OldLaunch, ledger: Ledger) -> None:
    """Words whose value the text does not decide."""
    for word in (*launch.words, *launch.arguments):
        if word.value.known:
            continue
        line = word.line if word.line in launch.lines else launch.lines[0]
        uses = word.value.uses
        if "array" in uses:
            why = "depends on the index in a job array"
        elif "rank" in uses:
            why = "depends on the process: the training finds its rank in RANK and LOCAL_RANK"
        elif "parameter" in uses:
            why = "an argument of the script: write its value"
        else:
            why = f"`{word.raw[:60]}` is known only in the job: write its value"
        ledger.not_understood([line], why)
    for name, value in launch.env.items():
        if not value.known:
            ledger.not_understood(launch.lines[:1], f"{name} is known only in the job: write its value in `env:`")


def launch_size(launch: OldLaunch, request: Request) -> LaunchSize:
    """The size of a launch, from its own options and the directives."""
    nodes, starts = request.nodes, 1
    if launch.one_node:
        nodes = request.nodes
    elif launch.by_srun:
        nodes = min(launch.nodes, request.nodes) if launch.nodes else request.nodes
        tasks = launch.tasks
        if launch.tasks_per_node:
            starts = launch.tasks_per_node
            nodes = max(tasks // starts, 1) if tasks and not launch.nodes else nodes
        elif tasks:
            nodes = min(nodes, tasks)
            starts = max(tasks // nodes, 1)
        else:
            starts = request.tasks_per_node
    gpus = launch.gpus_per_node if launch.gpus_per_node is not None else request.gpus_per_node
    own = launch.processes_per_node
    once = launch.launcher == "none"
    if launch.launcher == "torchrun" and not launch.by_srun:
        nodes = 1 if (launch.nodes or 1) == 1 and request.nodes == 1 else request.nodes
    processes = own if own is not None else 1 if once else starts
    cpus = request.cpus_per_node
    if launch.cpus_per_task and launch.by_srun:
        cpus = launch.cpus_per_task * starts
    return LaunchSize(nodes, 1 if once else starts, processes, gpus, cpus, once)
