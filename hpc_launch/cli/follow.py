"""Query and follow runs from the command line: shared by `submit --wait`, `resubmit --wait`, `watch`, `status`, …"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing

import click

from hpc_launch.cli.error_handler import INTERRUPTED
from hpc_launch.retry.drivers import Drivers, Schedulers, shown
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.run_index import Index, IndexEntry, user_index
from hpc_launch.run.status.run_status import RunStatus
from hpc_launch.run.status.tracker import RunTracker
from hpc_launch.spec.shell_text import visible

SETTLED = frozenset({"COMPLETED", "CANCELLED", "STOPPED"})
"""States that are final; a FAILED job may still be requeued by Slurm."""

SLACK_S = 60.0
"""Tolerated clock difference between this host and the file server."""


class IndexUpdater:
    """Writes the states of runs to the index when they change."""

    def __init__(self, index: Index, entries: Iterable[IndexEntry] = ()) -> None:
        self._index = index
        self._last = {entry.run: entry.last_state for entry in entries}

    def __call__(self, status: RunStatus) -> None:
        if status.undecided or status.folder_missing:
            return  # the run may continue, so its state is not settled
        if self._last.get(status.run) != status.state:
            self._last[status.run] = status.state
            self._index.seen(status)


def tracker_of(runs: Iterable[RunFolder], index: Index, entries: Iterable[IndexEntry] = ()) -> RunTracker:
    """A tracker of these runs that recognizes pending reasons that never clear."""
    return RunTracker(runs, Schedulers().of, never=_never, seen=IndexUpdater(index, entries))


def poll_runs(
    runs: Sequence[RunFolder], index: Index, entries: Iterable[IndexEntry] = (), *, drive: bool = True
) -> list[RunStatus]:
    """Query these runs and return their statuses in order. Prints a notice if the scheduler is slow.

    With `drive`, first does what is due: the verdict on an attempt that ended, and the next attempt. A failed run whose
    verdict has to wait is ENDING: another attempt may follow.
    """
    from hpc_launch.view.terminal import waiting_notice

    tracker = tracker_of(runs, index, entries)
    with waiting_notice("reading the run folders") as doing:
        statuses = tracker.poll(doing=doing)
    drivers = Drivers(tracker, index)
    due = [run for run in runs if drive and drivers.due(statuses[run.name])]
    if due:
        with waiting_notice(f"advancing {len(due)} run{'s' if len(due) > 1 else ''}"):
            outcomes = [drivers.drive(run) for run in due]
        for run, outcome in zip(due, outcomes, strict=True):
            if outcome.words and outcome.kind != "ended":
                click.echo(f"{visible(run.name)}: {visible(outcome.words)}", err=True)
        if any(outcome.kind != "nothing" for outcome in outcomes):
            statuses = tracker.poll()
        statuses |= {run.name: shown(statuses[run.name], one) for run, one in zip(due, outcomes, strict=True)}
    return [statuses[run.name] for run in runs]


def possibly_active(entries: Iterable[IndexEntry]) -> list[RunFolder]:
    """The runs that may be active, newest first.

    Skips runs whose last known state is final and whose `attempts` folder has not changed since.
    """
    return [RunFolder(entry.folder) for entry in entries if not _certainly_over(entry)]


def active_runs(index: Index) -> list[RunStatus]:
    """Query all runs of the user and return the active ones, newest first."""
    entries = index.entries()
    return [status for status in poll_runs(possibly_active(entries), index, entries) if not status.final]


def follow(runs: Sequence[RunFolder]) -> int:
    """Follow runs to their end on stderr.

    Returns the exit code: 0 if all completed, 1 if one did not complete or is stuck, 130 after Ctrl-C.
    """
    from hpc_launch.run.status.wait_for_end import wait
    from hpc_launch.view.live_view import follower
    from hpc_launch.view.state_text import detach_message

    index = user_index(os.environ)
    tracker = tracker_of(runs, index)
    drivers = Drivers(tracker, index)
    try:
        with closing(follower(sys.stderr, many=len(runs) > 1)) as display:

            def show(_: object = None) -> None:
                for status in tracker.last.values():
                    display.update(status)

            def sleep(seconds: float) -> None:
                show()
                drivers.drive_all(runs)
                time.sleep(seconds)

            def continues(status: RunStatus) -> bool:
                return drivers.drive(RunFolder(status.folder)).continues

            left = list(runs)
            while left:
                # Each poll covers all runs; `wait` returns at once for a run that has ended by its turn.
                ended = {run.name: wait(tracker, run, show, sleep=sleep, continues=continues).state for run in left}
                # A stuck run may have become unblocked, and a run that lost its nodes may have been requeued.
                left = [run for run in left if tracker.last[run.name].state != ended[run.name]]
            show()
    except KeyboardInterrupt:
        click.echo(detach_message([run.name for run in runs]), err=True)
        return INTERRUPTED
    last = [tracker.last[run.name] for run in runs]
    _close(last)
    return 0 if all(status.state == "COMPLETED" for status in last) else 1


def _close(ended: Sequence[RunStatus]) -> None:
    """Print how the runs ended and what to do next."""
    from hpc_launch.view import run_table
    from hpc_launch.view.run_details import summary
    from hpc_launch.view.terminal import wants_colour, write_lines

    if len(ended) > 1:
        run_table.show(ended, sys.stderr)
        ended = [status for status in ended if status.state != "COMPLETED"]
    for status in ended:
        write_lines(summary(status, colour=wants_colour(sys.stderr)), sys.stderr)


def _never(reason: str) -> object | None:
    from hpc_launch.schedulers.slurm.pending_reasons import never

    return never(reason)


def _certainly_over(entry: IndexEntry) -> bool:
    if entry.last_state not in SETTLED or entry.last_seen is None:
        return False
    try:
        return (entry.folder / "attempts").stat().st_mtime + SLACK_S < entry.last_seen
    except OSError:
        return False
