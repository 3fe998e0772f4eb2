"""Follow runs to their end, and do what is due meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from hpc_launch.retry.drivers import Drivers
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.wait_for_end import wait
from hpc_launch.service.listener import QUIET, Listener
from hpc_launch.service.poll import is_group, poll_runs, tracker_of

POLL_S = 3.0
"""Pause between two looks at sweeps and pipelines. The scheduler is asked less often, for all runs at once."""

Show = Callable[[Iterable[RunStatus]], None]
"""Called with the statuses of all runs again and again, whether they changed or not."""


def follow(
    runs: Sequence[RunFolder], index: Index, show: Show = lambda _: None, listener: Listener = QUIET
) -> list[RunStatus]:
    """Follow runs, sweeps and pipelines until each is over or can never start, and return their last statuses.

    A KeyboardInterrupt ends only the following.
    """
    if any(map(is_group, runs)):
        return _follow_groups(runs, index, show, listener)
    tracker = tracker_of(runs, index)
    drivers = Drivers(tracker, index)

    def show_all(_: object = None) -> None:
        show(tracker.last.values())

    def sleep(seconds: float) -> None:
        show_all()
        drivers.drive_all(runs)
        time.sleep(seconds)

    def continues(status: RunStatus) -> bool:
        return drivers.drive(RunFolder(status.folder)).continues

    left = list(runs)
    while left:
        # Each poll covers all runs; `wait` returns at once for a run that has ended by its turn.
        ended = {run.name: wait(tracker, run, show_all, sleep=sleep, continues=continues).state for run in left}
        # A stuck run may have become unblocked, and a run that lost its nodes may have been requeued.
        left = [run for run in left if tracker.last[run.name].state != ended[run.name]]
    show_all()
    drivers.tell(runs)
    return [tracker.last[run.name] for run in runs]


def _follow_groups(runs: Sequence[RunFolder], index: Index, show: Show, listener: Listener) -> list[RunStatus]:
    while True:
        statuses = poll_runs(runs, index, listener)
        show(statuses)
        if all((status.final and not status.undecided) or status.state == "STUCK" for status in statuses):
            return statuses
        time.sleep(POLL_S)
