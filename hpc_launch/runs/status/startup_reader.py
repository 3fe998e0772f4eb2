"""Read the start of an attempt from the watchers' events, and again only those that changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of, progress_patterns
from hpc_launch.runs.records.script_record import ScriptRecord
from hpc_launch.runs.records.watcher_records import start_events
from hpc_launch.runs.status.progress_reader import first_step
from hpc_launch.runs.status.startup_summary import (
    LAST,
    PREPARATIONS,
    Group,
    History,
    NodeStart,
    Startup,
    history,
    summary,
)

EARLIER_ATTEMPTS, EARLIER_NODES = 3, 16
"""How many earlier attempts, and nodes of each, show how long a start usually takes."""


class StartupReader:
    """Reads the start of attempts repeatedly."""

    def __init__(self) -> None:
        self._histories: dict[Path, tuple[int, History]] = {}
        self._earlier: dict[Path, tuple[NodeStart, ...]] = {}
        self._plans: dict[Path, PlanRecord] = {}
        self._over: set[Path] = set()

    def read(self, files: AttemptFiles, now: float) -> Startup | None:
        """The start of an attempt; None where nothing is known of it, or it is over. Never raises."""
        attempt = files.attempt
        if files.start is None or attempt.path in self._over:
            return None
        if attempt.path not in self._plans:
            self._plans[attempt.path] = plan_of(attempt) or PlanRecord()
        plan = self._plans[attempt.path]
        has_steps = "step" in progress_patterns(plan)
        if not plan.phases or (has_steps and first_step(attempt) is not None):
            self._over.add(attempt.path)
            return None
        nodes = tuple(self._nodes(files, plan))
        preparation = PREPARATIONS.get(files.start.phase or "")
        if preparation is not None and not any(node.history for node in nodes):
            names = tuple(node.name for node in nodes)
            return Startup((Group("", names, files.start.ended),), plan.container, preparation)
        if not has_steps and all(node.mark == LAST for node in nodes):
            self._over.add(attempt.path)
        return summary(
            nodes,
            now=now,
            began=_began(files.start),
            runtime=plan.container,
            has_steps=has_steps,
            output=files.output,
            earlier=self._before(attempt),
        )

    def _nodes(self, files: AttemptFiles, plan: PlanRecord) -> Iterator[NodeStart]:
        watched = dict(files.attempt.watcher_files())
        local = plan.scheduler == "local"
        names = [f"node {number}" for number in range(plan.nodes or 1)] if local else files.nodes
        written = _with_output(files.attempt) if len(watched) < len(names) else set()
        for number, name in enumerate(names):
            if number in watched:
                yield NodeStart(name, self._history(watched[number], plan.processes_per_node or 1))
            elif number not in written:  # what writes has started, if without a watcher
                yield NodeStart(name)

    def _history(self, path: Path, processes: int) -> History:
        kept = self._histories.get(path)
        if kept is not None and kept[1] and kept[1][-1][1] == LAST:
            return kept[1]
        size = _size(path)
        if kept is None or kept[0] != size:
            kept = self._histories[path] = size, history(start_events(path), processes)
        return kept[1]

    def _before(self, attempt: AttemptFolder) -> tuple[NodeStart, ...]:
        """Nodes of earlier attempts of the run."""
        if attempt.path not in self._earlier:
            found: list[NodeStart] = []
            for number in range(max(1, attempt.number - EARLIER_ATTEMPTS), attempt.number):
                earlier = attempt.run.attempt(number)
                start = Reader().read(earlier).start
                began = _began(start) if start is not None else None
                head: History = ((began, ""),) if began is not None else ()
                plan = plan_of(earlier) or PlanRecord()
                for _, path in islice(earlier.watcher_files(), EARLIER_NODES):
                    found.append(NodeStart("", head + self._history(path, plan.processes_per_node or 1)))
            self._earlier[attempt.path] = tuple(found)
        return self._earlier[attempt.path]


def _began(start: ScriptRecord) -> float | None:
    """When the script was done with node check and staging."""
    return start.ended if start.ended is not None else start.started


def _with_output(attempt: AttemptFolder) -> set[int]:
    """The numbers of the nodes that have written anything."""
    return {number for number, _, path in attempt.node_logs() if _size(path)}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
