"""The pace of an earlier run, as a plan for another one uses it: seconds per step, start, checkpoints and failures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from hpc_launch.performance.attempt_speed import gather
from hpc_launch.performance.checkpoint_interval import CheckpointInterval, interval_of
from hpc_launch.performance.run_times import RunTimes
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import PlanRecord, plan_of
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus

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
    furthest: int
    """The furthest step of the run."""
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


def measured_pace(status: RunStatus, times: RunTimes, index: Index, attempt: int | None = None) -> MeasuredPace | None:
    """The pace of a run, or of one of its attempts; None if fewer than two steps are known. Never raises."""
    measured: list[tuple[int, float, int]] = []
    for number, curve in times.curves.items():
        points = curve.points(64) if curve.has_steps and attempt in (None, number) else []
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
    lasts = [curve.last or 0 for curve in times.curves.values()]
    peaks = [gpu.mem_mib for node in gather(folders[number]).nodes for gpu in node.gpus if gpu.mem_mib is not None]
    return MeasuredPace(
        run=status.run,
        step_s=step_s,
        attempt=number,
        steps=steps,
        furthest=max(lasts),
        total=status.progress.total,
        processes=plan.world_size,
        start_s=max(0.0, median(starts)) if starts else None,
        interval=interval_of(status, times, index),
        longest_save_s=max(saves, default=None),
        peak_mib=max(peaks, default=None),
        folder=Path(status.folder),
    )
