"""Compare the clocks of a job's nodes by what their watchers noted."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_launch.run.records.attempt_files import AttemptFiles
from hpc_launch.run.records.watcher_records import watcher_events

TOLERATED_S = 120.0
"""A watcher starts after the job's script and ends before it; clocks that differ by less do no harm."""


def clocks_ahead(files: AttemptFiles, nodes: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """The nodes whose clock differs from that of the first node, and by about how many seconds it is ahead.

    A negative number means behind. Nodes whose watcher noted only times within the job are left out.
    """
    start, end = files.start, files.own_end
    # A script that is told to end writes its record first, and the nodes have more time (KillWait, a grace time).
    ended = end.ended if end is not None and not end.signal else None
    for number, path in files.attempt.watcher_files():
        times = [event.t for event in watcher_events(path) if event.t]
        if not times or not 0 < number < len(nodes):
            continue
        if start is not None and start.started is not None and times[0] < start.started - TOLERATED_S:
            yield nodes[number], times[0] - start.started
        elif ended is not None and times[-1] > ended + TOLERATED_S:
            yield nodes[number], times[-1] - ended
