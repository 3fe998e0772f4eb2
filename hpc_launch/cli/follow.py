"""Following runs from the command line: what `submit --wait`, `resubmit --wait` and `watch` share, and how a verb
gets at the state of runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing

import click

from hpc_launch.cli.error_handler import INTERRUPTED
from hpc_launch.retry.drivers import Drivers, Schedulers
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.run_index import Index, IndexEntry, user_index
from hpc_launch.run.status.run_status import RunStatus
from hpc_launch.run.status.tracker import RunTracker
from hpc_launch.spec.shell_text import visible

SETTLED = frozenset({"COMPLETED", "CANCELLED", "STOPPED"})
"""States that no scheduler takes back; after a FAILED Slurm may requeue the job."""

SLACK_S = 60.0
"""How far the clocks of this host and of a file server may be apart."""


class Seen:
    """Writes the states of runs to the index, each only when it changed."""

    def __init__(self, index: Index, entries: Iterable[IndexEntry] = ()) -> None:
        self._index = index
        self._last = {entry.run: entry.last_state for entry in entries}

    def __call__(self, status: RunStatus) -> None:
        if status.undecided:
            return  # what may go on must not be taken for settled
        if self._last.get(status.run) != status.state:
            self._last[status.run] = status.state
            self._index.seen(status)


def tracker_of(runs: Iterable[RunFolder], index: Index, entries: Iterable[IndexEntry] = ()) -> RunTracker:
    """A tracker of these runs that knows their schedulers, and which reasons for waiting never pass."""
    return RunTracker(runs, Schedulers().of, never=_never, seen=Seen(index, entries))


def look(
    runs: Sequence[RunFolder], index: Index, entries: Iterable[IndexEntry] = (), *, drive: bool = True
) -> list[RunStatus]:
    """How these runs stand now, in their order. Says so where a scheduler takes its time.

    With `drive`, what is due for them is done first: the verdict on an attempt that ended, the next attempt.
    """
    from hpc_launch.view.terminal import patience

    tracker = tracker_of(runs, index, entries)
    with patience("asking the scheduler"):
        found = tracker.poll()
    drivers = Drivers(tracker, index)
    due = [run for run in runs if drive and drivers.due(found[run.name])]
    if due:
        with patience("making the next attempts that are due"):
            moves = [drivers.drive(run) for run in due]
        for run, move in zip(due, moves, strict=True):
            if move.kind in ("submitted", "waiting"):
                click.echo(f"{visible(run.name)}: {visible(move.words)}", err=True)
        if any(move.kind != "nothing" for move in moves):
            found = tracker.poll()
    return [found[run.name] for run in runs]


def maybe_live(entries: Iterable[IndexEntry]) -> list[RunFolder]:
    """Those runs that need a look because they may not be over, newest first.

    Left out is what was over for good when last seen, and has had no new attempt since: its folder of attempts has
    not changed.
    """
    return [RunFolder(entry.folder) for entry in entries if not _certainly_over(entry)]


def live(index: Index) -> list[RunStatus]:
    """All runs of the user that are not over, newest first."""
    entries = index.entries()
    return [status for status in look(maybe_live(entries), index, entries) if not status.final]


def follow(runs: Sequence[RunFolder]) -> int:
    """Follow runs to their end on stderr.

    Returns the exit code: 0 if all completed, 1 if one ended otherwise or is stuck, 130 after Ctrl-C.
    """
    from hpc_launch.run.status.wait_for_end import wait
    from hpc_launch.view.live_view import follower
    from hpc_launch.view.state_text import come_back

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

            def goes_on(status: RunStatus) -> bool:
                return drivers.drive(RunFolder(status.folder)).goes_on

            left = list(runs)
            while left:
                # Each look is at all of them; those that are over by the time their turn comes return at once.
                ended = {run.name: wait(tracker, run, show, sleep=sleep, goes_on=goes_on).state for run in left}
                # One that was stuck may have been freed meanwhile, one that lost its nodes may be back.
                left = [run for run in left if tracker.last[run.name].state != ended[run.name]]
            show()
    except KeyboardInterrupt:
        click.echo(come_back([run.name for run in runs]), err=True)
        return INTERRUPTED
    last = [tracker.last[run.name] for run in runs]
    _close(last)
    return 0 if all(status.state == "COMPLETED" for status in last) else 1


def _close(ended: Sequence[RunStatus]) -> None:
    """Say how it all ended, and what to do next."""
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
