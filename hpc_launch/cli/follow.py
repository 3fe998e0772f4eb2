"""Query and follow runs from the command line: shared by `submit --wait`, `resubmit --wait`, `watch`, `status`, …"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace

import click

from hpc_launch.cli.error_handler import INTERRUPTED
from hpc_launch.job.shell_text import visible
from hpc_launch.retry.driver_outcome import DriverOutcome
from hpc_launch.retry.drivers import Drivers, Schedulers, shown
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index, IndexEntry, user_index
from hpc_launch.runs.status.followed_run import REMEMBERED_S
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker

TOGETHER = 2000
"""Runs whose files are in memory at a time."""


def is_group(run: RunFolder) -> bool:
    """Whether a run is a sweep, a pipeline or a part of one."""
    return run.sweep is not None or any(map(os.path.exists, (run.sweep_info, run.pipeline_info, run.stage_info)))


def tracker_of(runs: Iterable[RunFolder], index: Index) -> RunTracker:
    """A tracker of these runs that recognizes pending reasons that never clear."""
    return RunTracker(runs, Schedulers().of, never=_never, seen=index.seen)


def poll_runs(runs: Sequence[RunFolder], index: Index, *, drive: bool = True) -> list[RunStatus]:
    """Query these runs and return their statuses in order. Prints a notice if the scheduler is slow.

    With `drive`, first does what is due: the verdict on an attempt that ended, and the next attempt. A failed run whose
    verdict has to wait is ENDING: another attempt may follow. The status of a sweep or a pipeline is that of its runs.
    """
    if any(map(is_group, runs)):
        from hpc_launch.cli.poll_pipelines import poll_with_groups

        return poll_with_groups(runs, index, drive=drive)
    return poll_plain_runs(runs, index, drive=drive)


def poll_plain_runs(runs: Sequence[RunFolder], index: Index, *, drive: bool = True) -> list[RunStatus]:
    """`poll_runs` for runs of which none is a sweep."""
    from hpc_launch.view.terminal import waiting_notice

    tracker = tracker_of(runs, index)
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
        left = [_left_alone(statuses[run.name], one, tracker.now) for run, one in zip(due, outcomes, strict=True)]
        index.seen([status for status in left if status.settled])
        statuses |= {status.run: status for status in left}
        statuses |= {run.name: shown(statuses[run.name], one) for run, one in zip(due, outcomes, strict=True)}
    drivers.tell(runs if drive else ())
    return [statuses[run.name] for run in runs]


def poll_unfinished(index: Index, newest: int | None = None) -> list[tuple[IndexEntry, RunStatus]]:
    """Query the runs whose final status the index does not have. Returns those that still have none, newest first.

    `newest`: only those among so many of the newest runs.
    """
    from hpc_launch.view.terminal import waiting_notice

    with waiting_notice("reading the index of runs") as index.doing:
        entries = index.entries(unfinished=newest is None, limit=newest)
    entries = [entry for entry in entries if not entry.finished]
    parts = [entries[at : at + TOGETHER] for at in range(0, len(entries), TOGETHER)]
    polled = ((part, poll_runs([RunFolder(entry.folder) for entry in part], index)) for part in parts)
    return [pair for part in polled for pair in zip(*part, strict=True) if not pair[1].settled]


def active_runs(index: Index) -> list[RunStatus]:
    """Query all runs of the user and return the active ones, newest first."""
    return [status for _, status in poll_unfinished(index) if not status.final]


def follow(runs: Sequence[RunFolder]) -> int:
    """Follow runs to their end on stderr.

    Returns the exit code: 0 if all completed, 1 if one did not complete or is stuck, 130 after Ctrl-C.
    """
    if any(map(is_group, runs)):
        from hpc_launch.cli.follow_sweeps import follow_sweeps

        return follow_sweeps(runs)
    from hpc_launch.runs.status.wait_for_end import wait
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
    drivers.tell(runs)
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


def _left_alone(status: RunStatus, outcome: DriverOutcome, now: float) -> RunStatus:
    """The status once a driver looked: a run that it left alone long after the end stays as it is."""
    ended = status.attempts[-1].ended if status.attempts else None
    left = outcome.kind == "nothing" and ended is not None and now - ended > REMEMBERED_S
    return replace(status, undecided=False) if left else status


def _never(reason: str) -> object | None:
    from hpc_launch.schedulers.slurm.pending_reasons import never

    return never(reason)
