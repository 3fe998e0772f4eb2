"""What earlier runs measured: the pace that a plan uses, and the best interval between checkpoints.

The best interval loses the least time: Young (1974), Daly (2006), "A higher order estimate of the optimum checkpoint
interval for restart dumps", equation 37.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from hpc_launch.performance.run_samples import gather
from hpc_launch.performance.run_times import RunTimes
from hpc_launch.performance.time_account import AttemptTimes, merged
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus

ONE_S = 5.0
"""Files that are saved within so many seconds of each other belong to one checkpoint."""
SMALL = 0.1
"""What takes less than this part of the longest save is not a checkpoint."""
FAILURES = frozenset({"RETRY", "RETRY_ELSEWHERE"})
"""Verdicts on attempts that a failure ended which comes again at any time. Others come at once, or are announced."""
MOST_RUNS = 100


@dataclass(frozen=True)
class Exposure:
    """How long nodes have run, in node seconds, and how often an attempt failed in that time."""

    node_s: float = 0.0
    failures: int = 0


@dataclass(frozen=True)
class CheckpointInterval:
    """The best interval and what it follows from. Times are seconds."""

    cost_s: float
    """Median time of a checkpoint."""
    checkpoints: int
    every_s: float | None
    """Median time from one checkpoint to the next, if there are two in one attempt."""
    exposure: Exposure
    nodes: int
    """Of the run."""

    @property
    def mtbf_s(self) -> float:
        """The mean time between failures of a run of this size."""
        return self.exposure.node_s / self.exposure.failures / self.nodes

    @property
    def best_s(self) -> float:
        """The time from one checkpoint to the next that loses the least."""
        cost, mtbf = self.cost_s, self.mtbf_s
        if cost >= 2 * mtbf:
            return mtbf + cost
        ratio = cost / (2 * mtbf)
        return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9)

    def lost(self, every_s: float) -> float:
        """The share of the time that checkpoints every so often lose: their cost, and the work since the last one."""
        return min(1.0, self.cost_s / every_s + every_s / (2 * self.mtbf_s)) if every_s > 0 else 1.0


def checkpoint_interval(attempts: Sequence[AttemptTimes], nodes: int, exposure: Exposure) -> CheckpointInterval | None:
    """The best interval; None where no checkpoint was measured, or no failure was seen."""
    costs: list[float] = []
    distances: list[float] = []
    for attempt in attempts:
        parts = merged(attempt.saves, 0.0)
        groups = [
            (begin, sum(high - low for low, high in parts if low >= begin and high <= end))
            for begin, end in merged(attempt.saves, ONE_S)
        ]
        large = [(begin, cost) for begin, cost in groups if cost >= SMALL * max(cost for _, cost in groups)]
        costs += [cost for _, cost in large]
        distances += [later - earlier for (earlier, _), (later, _) in pairwise(large)]
    if not costs or not exposure.failures or exposure.node_s <= 0 or nodes < 1:
        return None
    return CheckpointInterval(median(costs), len(costs), median(distances) if distances else None, exposure, nodes)


def interval_of(status: RunStatus, times: RunTimes, index: Index) -> CheckpointInterval | None:
    """The best interval of a run, by its checkpoints and the failures of the newest runs of its site. Never raises."""
    if not any(attempt.saves for attempt in times.attempts):
        return None
    folders = [entry.folder for entry in index.entries(site=status.site, limit=MOST_RUNS)]
    runs = {folder.name: RunFolder(folder) for folder in (status.folder, *folders)}
    nodes = max((len(attempt.nodes) for attempt in status.attempts), default=0) or 1
    return checkpoint_interval(times.attempts, nodes, exposure_of(runs.values()))


def exposure_of(runs: Iterable[RunFolder]) -> Exposure:
    """How long the nodes of these runs have run, and how often they failed. Never raises."""
    reader = Reader()
    parts = [_exposure(reader.read(attempt)) for run in runs for attempt in run.attempts()]
    return Exposure(sum(part.node_s for part in parts), sum(part.failures for part in parts))


def _exposure(files: AttemptFiles) -> Exposure:
    began = files.start.started if files.start is not None else None
    ends = (files.own_end.ended if files.own_end is not None else None, files.final.ended if files.final else None)
    ended = next((time for time in ends if time is not None), files.verdict.time if files.verdict is not None else None)
    if began is None or ended is None or ended <= began:
        return Exposure()
    failed = files.verdict is not None and files.verdict.action in FAILURES
    return Exposure((ended - began) * max(1, len(files.nodes)), int(failed))


LEAD_TIMES = 2.0
"""The warning comes so many times the longest save before the limit: a save may take longer than those seen."""
SHORTEST_LEAD_S = 60.0


@dataclass(frozen=True)
class MeasuredPace:
    """What a run measured. Times are in seconds; None is unknown."""

    run: str
    step_s: float
    """Seconds per step, with the checkpoints between them: of the attempt that made the most steps."""
    attempt: int
    steps: int
    """The steps that it is measured by."""
    total: int | None
    """The last step, if its log names it."""
    processes: int | None
    start_s: float | None
    """Median time from the start of a job to its first step."""
    interval: CheckpointInterval | None
    longest_save_s: float | None
    peak_mib: float | None
    """The largest memory in use that the watcher saw on a GPU."""
    folder: Path | None = None
    """The run folder."""

    @property
    def lead_s(self) -> float | None:
        """How long before the time limit the training should be warned."""
        return None if self.longest_save_s is None else max(SHORTEST_LEAD_S, LEAD_TIMES * self.longest_save_s)


def measured_pace(status: RunStatus, times: RunTimes, index: Index) -> MeasuredPace | None:
    """The pace of a run; None if fewer than two steps are known. Never raises."""
    measured: list[tuple[int, float, int]] = []
    for number, curve in times.curves.items():
        points = curve.points(64) if curve.has_steps else []
        if len(points) > 1 and points[-1][1] > points[0][1]:
            (begin, first), (end, last) = points[0], points[-1]
            measured.append((last - first, (end - begin) / (last - first), number))
    if not measured:
        return None
    steps, step_s, number = max(measured)
    folders = {folder.number: folder for folder in RunFolder(status.folder).attempts()}
    plan = plan_of(folders[number]) or PlanRecord()
    starts = [one.trained - one.began for one in times.attempts if one.trained is not None and one.began is not None]
    saves = [end - begin for one in times.attempts for begin, end in one.saves]
    peaks = [gpu.mem_mib for node in gather(folders[number]).nodes for gpu in node.gpus if gpu.mem_mib is not None]
    return MeasuredPace(
        run=status.run,
        step_s=step_s,
        attempt=number,
        steps=steps,
        total=status.progress.total,
        processes=plan.world_size,
        start_s=max(0.0, median(starts)) if starts else None,
        interval=interval_of(status, times, index),
        longest_save_s=max(saves, default=None),
        peak_mib=max(peaks, default=None),
        folder=Path(status.folder),
    )
