"""How far the start of an attempt is: its phase, and the nodes that are behind.

The evidence are the watchers' events: that a node's script began, and the marks that its processes left
(agent/sitecustomize.py). A mark that was not seen is not assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_launch.agent.checkpoints import size_of
from hpc_launch.job.hostlist import compress
from hpc_launch.runs.records.attempt_files import AttemptFiles, RoleStates
from hpc_launch.runs.records.node_records import WatcherEvent, start_events
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of, progress_patterns
from hpc_launch.runs.status.progress_reader import first_step

MARKS = {
    "": ("start", "not started"),
    "started": ("start", "still starting Python"),
    "launcher": ("imports", "still importing"),
    "rendezvous": ("rendezvous", "still connecting to the rendezvous"),
    "joined": ("rendezvous", "still in the rendezvous"),
    "met": ("imports", "still starting {its} processes"),
    "python": ("imports", "still importing"),
    "torch": ("imports", "not in the rendezvous yet"),
    "init": ("rendezvous", "still connecting to the rendezvous"),
    "store": ("rendezvous", "still in the rendezvous"),
    "group": ("first_step", "not in the first collective yet"),
    "collective": ("first_collective", "still in the first collective"),
    "done": ("first_step", "before the first step"),
}
"""In the order in which a node leaves them: the phase that the node is then in, and what it is doing."""

ORDER = {mark: number for number, mark in enumerate(MARKS)}
LAST = "done"
"""The last mark that processes leave."""
LAUNCHER = "-"
"""The launcher among the processes of a node; the others are named by their rank."""

NAMED = 3
"""More nodes than this are shown as a host list, `n[1-4]`."""

PREPARATIONS = {"check": "node_check", "stage": "staging"}
"""What the script does before it starts anything on the nodes, by the phase in start.json."""

History = tuple[tuple[float, str], ...]
"""When a node reached which mark; times are seconds since the epoch."""


@dataclass(frozen=True)
class NodeStart:
    """The start of one node. The history is empty where nothing shows that its script began."""

    name: str
    history: History = ()

    @property
    def mark(self) -> str:
        """The newest mark."""
        return self.history[-1][1] if self.history else ""


@dataclass(frozen=True)
class Group:
    """The nodes at one mark."""

    mark: str
    nodes: tuple[str, ...]
    since: float | None = None
    """When the first of them reached the mark, in seconds since the epoch."""


@dataclass(frozen=True)
class Startup:
    """The start of an attempt: groups of nodes, those that are furthest first, then those behind from the last one."""

    groups: tuple[Group, ...]
    runtime: str | None = None
    """What starts the image on each node."""
    preparation: str | None = None
    """One of PREPARATIONS' values, or `roles`, while no node is expected to have started."""
    ready: str = ""
    """How many of the roles are ready, and what the others do."""

    @property
    def phase(self) -> str:
        """The phase of the nodes that are furthest."""
        if self.preparation is not None:
            return self.preparation
        mark = self.groups[0].mark
        return "container_start" if self.runtime and MARKS[mark][0] == "start" else MARKS[mark][0]

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return sum(len(group.nodes) for group in self.groups)

    @property
    def behind(self) -> tuple[Group, ...]:
        """The nodes that the others wait for, by what they are doing; all nodes where none has started."""
        if self.preparation is not None:
            return ()
        return self.groups[1:] if self.groups[0].mark else self.groups

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The nodes that the others wait for."""
        return tuple(name for group in (self.groups if self.ready else self.behind) for name in group.nodes)

    def text(self) -> str:
        """`rendezvous: 6 of 8 nodes; n3 not started; n7 still importing`."""
        return "; ".join((self.head(), *map(self.doing, self.behind)))

    def doing(self, group: Group) -> str:
        """`n3, n7 still starting their container`."""
        words = MARKS[group.mark][1].format(its="its" if len(group.nodes) == 1 else "their")
        if group.mark == "started" and self.runtime:
            words = f"still starting {'its' if len(group.nodes) == 1 else 'their'} container"
        return f"{named(group.nodes)} {words}"

    def head(self) -> str:
        """`rendezvous: 6 of 8 nodes`."""
        count = len(self.groups[0].nodes) if self.groups[0].mark else 0
        words = self.phase.replace("_", " ")
        counts = self.nodes > 1 and self.preparation is None
        return f"{words}: {count} of {self.nodes} nodes" if counts else f"{words}{self.ready}"


def history(events: Iterable[WatcherEvent], processes: int) -> History:
    """When the node of these events reached which mark."""
    found: list[tuple[float, str]] = []
    for event in events:
        if event.event not in ("start", "phase") or event.t is None:
            continue
        mark = "started" if event.event == "start" else _mark_of(event.marks, processes)
        if not found or found[-1][1] != mark:
            found.append((event.t, mark))
    return tuple(found)


def _mark_of(marks: Mapping[str, str], processes: int) -> str:
    """The mark of a node: that of its slowest process."""
    known = {process: mark for process, mark in marks.items() if mark and mark in MARKS}
    launcher = known.pop(LAUNCHER, "started")
    ranks = list(known.values())
    if len(ranks) >= max(processes, 1) and launcher not in ("rendezvous", "joined"):
        return min(ranks, key=ORDER.__getitem__)
    return launcher


def summary(
    nodes: Sequence[NodeStart],
    *,
    began: float | None = None,
    runtime: str | None = None,
    has_steps: bool = True,
    output: bool = False,
) -> Startup | None:
    """The start of an attempt that has not shown a step; None where nothing is known of it, or it is over.

    Args:
        nodes: The nodes of the attempt.
        began: When its script began.
        runtime: What starts the image on each node; None without one.
        has_steps: Whether the log is searched for steps, so that the first one will be seen.
        output: Whether the training has written anything.
    """
    marks = sorted({node.mark for node in nodes}, key=ORDER.__getitem__)
    if not marks or (marks == [""] and output):
        return None
    furthest, least = marks[-1], ORDER[marks[0]]
    if not has_steps and (least >= ORDER["group"] or (output and len(marks) == 1 and furthest in ("python", "torch"))):
        return None
    groups = []
    for mark in (furthest, *marks[:-1]):
        mine = [node for node in nodes if node.mark == mark]
        since = min((node.history[-1][0] for node in mine if node.history), default=began)
        groups.append(Group(mark, tuple(node.name for node in mine), since))
    return Startup(tuple(groups), runtime)


def _roles(states: RoleStates) -> Startup:
    """The start while not all roles are ready: those that start, and what they answer."""
    starting = [role for role in states.late if role.state == "starting"] or list(states.late)
    nodes = tuple(dict.fromkeys(node for role in starting for node in role.nodes))
    count = f": {len(states.roles) - len(states.late)} of {len(states.roles)} ready"
    doing = (f"; {role.name} {role.state}" + (f", {role.waits_for}" if role.waits_for else "") for role in starting)
    group = Group("", nodes, min(role.since for role in starting))
    return Startup((group,), preparation="roles", ready=count + "".join(doing))


def named(nodes: Sequence[str]) -> str:
    """`n3, n7`, and of more nodes a host list."""
    if len(nodes) > NAMED:
        try:
            return compress(nodes)
        except ValueError:
            pass
    return ", ".join(nodes)


class StartupReader:
    """Reads the start of attempts repeatedly."""

    def __init__(self) -> None:
        self._histories: dict[Path, tuple[int, History]] = {}

    def read(self, files: AttemptFiles) -> Startup | None:
        """The start of an attempt; None where nothing is known of it, or it is over. Never raises."""
        attempt = files.attempt
        if files.start is None:
            return None
        if files.roles is not None and files.roles.late and files.own_end is None:
            return _roles(files.roles)
        plan = plan_of(attempt) or PlanRecord()
        has_steps = "step" in progress_patterns(plan)
        if not plan.phases or (has_steps and first_step(attempt) is not None):
            return None
        nodes = tuple(self._nodes(files, plan))
        preparation = PREPARATIONS.get(files.start.phase or "")
        if preparation is not None and not any(node.history for node in nodes):
            names = tuple(node.name for node in nodes)
            return Startup((Group("", names, files.start.ended),), plan.container, preparation)
        start = files.start
        began = start.ended if start.ended is not None else start.started  # done with node check and staging
        return summary(nodes, began=began, runtime=plan.container, has_steps=has_steps, output=files.output)

    def _nodes(self, files: AttemptFiles, plan: PlanRecord) -> Iterator[NodeStart]:
        watched = dict(files.attempt.watcher_files())
        local = plan.scheduler not in ("slurm", "ssh")
        names: Sequence[str] = [f"node {number}" for number in range(plan.nodes or 1)] if local else files.nodes
        if files.roles is not None and files.roles.roles:
            names = files.roles.roles[0].nodes
        lacking = len(watched) < len(names)
        written = {number for number, _, path in files.attempt.node_logs() if size_of(path)} if lacking else set()
        for number, name in enumerate(names):
            if number in watched:
                yield NodeStart(name, self._history(watched[number], plan.processes_of(number)))
            elif number not in written:  # what writes has started, if without a watcher
                yield NodeStart(name)

    def _history(self, path: Path, processes: int) -> History:
        kept = self._histories.get(path)
        if kept is not None and kept[1] and kept[1][-1][1] == LAST:
            return kept[1]
        size = size_of(path)
        if kept is None or kept[0] != size:
            kept = self._histories[path] = size, history(start_events(path), processes)
        return kept[1]
