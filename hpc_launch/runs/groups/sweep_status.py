"""The state of a sweep: those of its points, and the best of them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpc_launch.base.files import read_text
from hpc_launch.base.patterns import compiled
from hpc_launch.job.sweep_points import SweepPoint, label
from hpc_launch.runs.groups.array_tasks import begun, in_jobs
from hpc_launch.runs.groups.group_folder import SweepFolder
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.run_info import read_info
from hpc_launch.runs.status.progress_reader import Progress, number, tail_lines
from hpc_launch.runs.status.run_status import STATE_ORDER, RunStatus, group_status, status_of
from hpc_launch.runs.submitting.reconcile import NOT_YET


@dataclass(frozen=True)
class PointStatus:
    """A point now. `metric` is the value by which points are compared; None while there is none."""

    point: SweepPoint
    status: RunStatus
    metric: float | None

    def as_json(self) -> dict[str, Any]:
        """Its part of `status SWEEP --json`."""
        values = {"point": self.point.number, "values": dict(self.point.values), "metric": self.metric}
        return {**values, **self.status.as_json(attempts=False), "attempts": len(self.status.attempts)}


@dataclass(frozen=True)
class SweepStatus:
    """A sweep now."""

    sweep: SweepFolder
    points: tuple[PointStatus, ...]
    cancelled: bool = False
    stamp: int | None = None
    """When a point last got an attempt (ns), before the points were read."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of points in each state."""
        found = Counter(one.status.state for one in self.points)
        return {state: found[state] for state in STATE_ORDER if found[state]}

    @property
    def best(self) -> PointStatus | None:
        """The point with the best metric."""
        sign = -1.0 if self.sweep.record.goal == "max" else 1.0
        known = [(sign * one.metric, one.point.number, one) for one in self.points if one.metric is not None]
        return min(known, key=lambda entry: entry[:2])[2] if known else None

    def as_run(self) -> RunStatus:
        """The sweep as one line of a list: its progress is the number of points that completed."""
        counts = self.counts
        text = ", ".join(f"{count} {name}" for name, count in counts.items())
        best = self.best
        # Where all are, only a new attempt of a point can change this status.
        over = (one.status.settled or (self.cancelled and not one.status.attempts) for one in self.points)
        if best is not None:
            text += f"; best {label(best.point.values)}: {best.metric:g}"
        return group_status(
            self.sweep.run,
            next(iter(counts), "UNKNOWN"),
            text if self.points else "sweep.json cannot be read",
            [one.status for one in self.points],
            progress=Progress(step=counts.get("COMPLETED", 0), total=len(self.points)),
            undecided=any(one.status.undecided for one in self.points),
            final_stamp=self.stamp if self.points and all(over) else None,
        )

    def as_json(self) -> dict[str, Any]:
        """The object of `status SWEEP --json`."""
        best, record = self.best, self.sweep.record
        return {
            **self.as_run().as_json(attempts=False),
            "counts": self.counts,
            "goal": record.goal,
            "best": best.as_json() if best is not None else None,
            "points": [one.as_json() for one in self.points],
        }


def sweep_status(sweep: SweepFolder, statuses: Mapping[str, RunStatus], stamp: int | None = None) -> SweepStatus:
    """The sweep's state by those of its points, by the names of their runs; they were read after `stamp`."""
    cancelled, info = os.path.exists(sweep.cancel), read_info(sweep.run)
    runs = {point.number: sweep.point(point.number) for point in sweep.record.points}
    queued = in_jobs(sweep) if any(run.name not in statuses for run in runs.values()) else frozenset()
    points = []
    for point in sweep.record.points:
        run = runs[point.number]
        status = statuses.get(run.name)
        if status is None or (cancelled and status.state == "SUBMITTING" and not status.attempts):
            state, reason = "SUBMITTING", NOT_YET
            if cancelled:
                state, reason = "CANCELLED", "the sweep was cancelled"
            elif point.number in queued:  # only its owner can ask about it
                state, reason = "PENDING", "it has not started, by what the sweep's folder shows"
            else:
                with suppress(OSError):
                    reason = f"{NOT_YET}: {read_text(sweep.refused, errors='replace').strip()}"
            status = status_of(run, info, state, reason)
        points.append(PointStatus(point, status, _metric(sweep, run, status)))
    return SweepStatus(sweep, tuple(points), cancelled, stamp)


def sweep_states(
    runs: Iterable[RunFolder],
    poll: Callable[[list[RunFolder]], Mapping[str, RunStatus]],
    advance: Callable[[SweepFolder], object] = lambda _: None,
) -> dict[str, RunStatus | SweepStatus]:
    """The states of runs by name, of which some are sweeps or points of them.

    `poll` gets those of ordinary runs. `advance` submits points that have no job yet, before that.
    """
    folders = {run.name: run for run in runs}
    sweeps = {name: SweepFolder(run) for name, run in folders.items() if os.path.exists(run.sweep_info)}
    homes = {**sweeps, **{home.name: SweepFolder(home) for run in folders.values() if (home := run.sweep) is not None}}
    for sweep in homes.values():
        advance(sweep)
    stamps = {name: sweep.run.attempts_stamp() for name, sweep in sweeps.items()}
    points = {run.name: run for sweep in sweeps.values() for run in begun(sweep)}
    polled = [run for name, run in {**folders, **points}.items() if name not in sweeps]
    found = poll(polled) if polled else {}
    return {**found, **{name: sweep_status(sweep, found, stamps[name]) for name, sweep in sweeps.items()}}


def _metric(sweep: SweepFolder, run: RunFolder, status: RunStatus) -> float | None:
    """The last value in the log of the last attempt, by the sweep's own pattern or the job's loss."""
    pattern = sweep.record.metric
    if pattern is None:
        return status.progress.loss
    if not status.attempts:
        return None
    with suppress(OSError, re.error, IndexError):
        attempt = run.attempt(status.attempts[-1].number)
        lines = tail_lines(attempt.first_log, over=status.final)
        found = next(filter(None, map(compiled(pattern).search, lines)), None)
        return number(found) if found else None
    return None
