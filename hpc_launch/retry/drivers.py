"""The drivers of the verbs that show runs: they submit the next attempts that are due."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from hpc_launch.base.errors import UserError
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.schedulers.scheduler import Scheduler


class DriverOutcome(Struct, frozen=True):
    """What a driver did or found. `words`: the text for the user."""

    kind: Literal["nothing", "ended", "waiting", "submitted"]
    words: str = ""

    @property
    def continues(self) -> bool:
        """Whether the run continues."""
        return self.kind in ("waiting", "submitted")


NOTHING = DriverOutcome("nothing")


DRIVE_S = 3.0
"""The interval between two looks at a run that waits for something."""
TELL_S = 60.0
"""The interval between two looks whether a message about a run that is over has arrived."""


class Schedulers:
    """One scheduler object of each kind and cluster, so that one query covers all runs of a cluster."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], Scheduler] = {}

    def of(self, run: RunFolder) -> Scheduler:
        """The scheduler that the run was submitted to. Raises UsageError where the run folder does not record it."""
        from hpc_launch.runs.records.run_info import read_info
        from hpc_launch.schedulers.scheduler import scheduler_for

        info = read_info(run)
        which = (info.scheduler, info.cluster) if info else ("", None)
        if which not in self._known:
            self._known[which] = scheduler_for(*which)
        return self._known[which]


class Drivers:
    """Submits the next attempts of the runs that a tracker follows, at most once in DRIVE_S for each run."""

    def __init__(self, tracker: RunTracker, index: Index) -> None:
        self._tracker = tracker
        self._index = index
        self._schedulers = Schedulers()
        self._last: dict[str, tuple[float, DriverOutcome]] = {}
        self._told: dict[str, float] = {}

    def due(self, status: RunStatus) -> bool:
        """Whether there may be something to do for a run."""
        waiting = status.state in ("RETRYING", "STUCK", "UNKNOWN")
        return status.undecided or status.cancel_due or waiting or (status.final and status.successor is not None)

    def drive(self, run: RunFolder) -> DriverOutcome:
        """Do what is due, unless the last look was less than DRIVE_S ago."""
        from hpc_launch.retry.recover_run import recover

        at, move = self._last.get(run.name, (0.0, NOTHING))
        if move.kind == "waiting" and time.monotonic() - at < DRIVE_S:
            return move
        try:
            move = recover(run, self._tracker, self._schedulers.of(run), index=self._index)
        except UserError:
            move = NOTHING  # its folder does not record the scheduler
        except Exception as error:
            # What one run's files contain must not keep the others from continuing.
            words = f"left alone after an internal error: {error}; `hpc-launch why {run.name}` writes a report"
            move = DriverOutcome("nothing", words)
        self._last[run.name] = (time.monotonic(), move)
        return move

    def tell(self, runs: Iterable[RunFolder]) -> None:
        """Send what is due for runs that are over (`notify:`), for each at most once in TELL_S."""
        now = time.monotonic()
        due: dict[Path, RunFolder] = {}
        for run in runs:
            status = self._tracker.last.get(run.name)
            over = status is not None and status.final and not status.undecided
            if status is None or not over or now - self._told.get(run.name, now - TELL_S) < TELL_S:
                continue
            from hpc_launch.retry.notifications import tell_end

            self._told[run.name] = now
            found = tell_end(run, status)
            if found is not None:
                due[found.path] = found
        for run in due.values():
            from hpc_launch.retry.notifications import deliver

            deliver(run)

    def drive_all(self, runs: Iterable[RunFolder]) -> None:
        """Do what is due for all of them."""
        looked = list(runs)
        for run in looked:
            status = self._tracker.last.get(run.name)
            if status is not None and self.due(status):
                self.drive(run)
        self.tell(looked)
