"""List a user's runs, newest first."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice

from hpc_launch.base.errors import UsageError
from hpc_launch.job.type_hints import nearest
from hpc_launch.job.units import parse_duration
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import FINAL_RUN_STATES, RUN_STATES, RunStatus
from hpc_launch.service.listener import QUIET, Listener
from hpc_launch.service.poll import TOGETHER, poll_runs

ACTIVE = "ACTIVE"
"""Stands for every state of a run that is not over."""

Since = str | float | timedelta | datetime
"""An age such as `1d` or a `timedelta`, seconds since the epoch, or a `datetime`."""


def states_named(names: Iterable[str]) -> list[str]:
    """The states with these names in any case. Raises UsageError for an unknown one."""
    known, found = [*RUN_STATES, ACTIVE], list[str]()
    for name in names:
        upper = name.upper()
        if upper not in known:
            near = nearest(upper, known)
            raise UsageError(f"no state is called {name!r}", f"did you mean {near!r}?" if near else ", ".join(known))
        found += [one for one in RUN_STATES if one not in FINAL_RUN_STATES] if upper == ACTIVE else [upper]
    return found


def begin_of(since: Since) -> float:
    """The time in seconds since the epoch. Raises UsageError for text that is no age."""
    if isinstance(since, datetime):
        return since.timestamp()
    if isinstance(since, timedelta):
        return time.time() - since.total_seconds()
    if isinstance(since, str):
        try:
            return time.time() - parse_duration(since)
        except ValueError as error:
            raise UsageError(f"{since!r} is no age: {error}", "write an age such as 1d or 12h") from None
    return since


def list_runs(
    index: Index,
    listener: Listener = QUIET,
    *,
    states: Sequence[str] = (),
    site: str | None = None,
    since: float | None = None,
    limit: int | None = None,
) -> list[RunStatus]:
    """The runs that meet all conditions, newest first, after doing what is due for those that are not over.

    Args:
        index: Where the runs are listed.
        listener: Hears what was done.
        states: Only those in one of these states.
        site: Only those on this site.
        since: Only those created since then, in seconds since the epoch.
        limit: At most so many.
    """
    with listener.doing("reading the index of runs"):
        index.check()
        most = None if states else limit  # without states, only the runs that are listed need a query
        entries = index.entries(unfinished=most is None, limit=most, site=site, since=since)
    entries = [entry for entry in entries if not entry.finished]
    parts = (entries[at : at + TOGETHER] for at in range(0, len(entries), TOGETHER))
    polled = ((part, poll_runs([RunFolder(entry.folder) for entry in part], index, listener)) for part in parts)
    alive = [pair for part in polled for pair in zip(*part, strict=True) if not pair[1].settled]
    alive = [pair for pair in alive if not states or pair[1].state in states]
    ended = index.finished(states, limit, site=site, since=since)
    newest = merge(alive, ended, key=lambda one: (one[0].created, one[0].run), reverse=True)
    return [status for _, status in islice(newest, limit)]
