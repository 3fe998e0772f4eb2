"""Find and list runs, wait for several, and explain the logs of any job."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

from hpc_launch.api.run_object import Run, RunFailed
from hpc_launch.base.errors import UsageError
from hpc_launch.job.type_hints import nearest
from hpc_launch.job.units import parse_duration
from hpc_launch.runs.find_run import find_run
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import user_index
from hpc_launch.runs.status.run_status import FINAL_RUN_STATES, RUN_STATES, RunStatus
from hpc_launch.runs.status.wait_for_end import Show
from hpc_launch.service.listener import LOGGED, Listener
from hpc_launch.service.poll import TOGETHER, follow, poll_runs

if TYPE_CHECKING:
    from hpc_launch.view.explanation import Explanation

Since = str | float | timedelta | datetime
"""An age such as `1d` or a `timedelta`, seconds since the epoch, or a `datetime`."""


def find(name: str, *, listener: Listener = LOGGED) -> Run:
    """The run with this name or the beginning of it, job id or folder; `@last` is the newest, `SWEEP/7` a point.

    Raises:
        UsageError: There is none, or there are several, which the hint names.
        RunElsewhere: Its files are on another host.
    """
    return Run(find_run(name, user_index(), stages=True).path, listener=listener)


def runs(
    *,
    state: str | Iterable[str] = (),
    since: Since | None = None,
    site: str | None = None,
    limit: int | None = None,
    listener: Listener = LOGGED,
) -> list[Run]:
    """The user's runs that meet all conditions, newest first, each with its `last` status.

    Args:
        state: A state, such as `failed`, or several; `active` selects all that are not final.
        since: Only those submitted since then: an age such as `1d` or a `timedelta`, seconds since the epoch, or a
            `datetime`.
        site: Only those on this site.
        limit: At most so many.
        listener: As for `submit`.

    Raises:
        UsageError: There is no such state, or `since` is no time.
    """
    states = _states([state] if isinstance(state, str) else state)
    begin = _begin(since) if since is not None else None
    index = user_index()
    with listener.doing("reading the index of runs"):
        index.check()
        most = None if states else limit  # without states, only the runs that are listed need a query
        entries = index.entries(unfinished=most is None, limit=most, site=site, since=begin)
    entries = [entry for entry in entries if not entry.finished]
    parts = (entries[at : at + TOGETHER] for at in range(0, len(entries), TOGETHER))
    polled = ((part, poll_runs([RunFolder(entry.folder) for entry in part], index, listener)) for part in parts)
    alive = [pair for part in polled for pair in zip(*part, strict=True) if not pair[1].settled]
    alive = [pair for pair in alive if not states or pair[1].state in states]
    ended = index.finished(states, limit, site=site, since=begin)
    newest = merge(alive, ended, key=lambda one: (one[0].created, one[0].run), reverse=True)
    return [Run(status.folder, last=status, listener=listener) for _, status in islice(newest, limit)]


def _states(names: Iterable[str]) -> list[str]:
    """The states with these names in any case. Raises UsageError for an unknown one."""
    known, found = [*RUN_STATES, "ACTIVE"], list[str]()
    for name in names:
        upper = name.upper()
        if upper not in known:
            near = nearest(upper, known)
            raise UsageError(f"no state is called {name!r}", f"did you mean {near!r}?" if near else ", ".join(known))
        found += [one for one in RUN_STATES if one not in FINAL_RUN_STATES] if upper == "ACTIVE" else [upper]
    return found


def _begin(since: Since) -> float:
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


def wait(
    runs: Iterable[Run],
    timeout: float | timedelta | None = None,
    *,
    check: bool = False,
    show: Show = lambda _: None,
    listener: Listener = LOGGED,
) -> list[RunStatus]:
    """Wait for several runs, with one query for all; return their last statuses. A KeyboardInterrupt ends no run.

    Args:
        runs, listener: The runs, and who hears what is done meanwhile.
        timeout, check: As for `Run.wait`, as are the errors.
        show: Called with the statuses of all, again and again.
    """
    several = list(runs)
    most_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    folders = [run.one(groups=True) for run in several]
    statuses = follow(folders, user_index(), show, listener, most_s=most_s)
    for run, status in zip(several, statuses, strict=True):
        run.last = status
    failed = next((status for status in statuses if status.state != "COMPLETED"), None)
    if check and failed is not None:
        raise RunFailed(failed)
    return statuses


def diagnose(*logs: str | os.PathLike[str], stdin: BinaryIO | None = None, listener: Listener = LOGGED) -> Explanation:
    """Why any job failed, from its log files, the parts of one job; `-` is `stdin`. Raises UsageError."""
    from hpc_launch.service.diagnose import diagnose_logs
    from hpc_launch.view.explanation import Explanation

    diagnosis, verdict = diagnose_logs([os.fspath(log) for log in logs], stdin or io.BytesIO(), listener)
    return Explanation(diagnosis=diagnosis, verdict=verdict)
