"""Find and list runs, wait for several, and explain the logs of any job."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, BinaryIO

from hpc_launch.api.run_object import Run, RunFailed
from hpc_launch.runs.find_run import find_run
from hpc_launch.runs.run_index import user_index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.wait_for_end import Show
from hpc_launch.service.list_runs import Since, begin_of, list_runs, states_named
from hpc_launch.service.listener import LOGGED, Listener
from hpc_launch.service.poll import follow

if TYPE_CHECKING:
    from hpc_launch.api.explanation import Explanation


def find(name: str, *, listener: Listener = LOGGED) -> Run:
    """The run with this name or the beginning of it, job id or folder; `@last` is the newest, `SWEEP/7` a point.

    Raises:
        UsageError: There is none, or there are several, which the hint names.
        RunElsewhere: Its files are on another host.
    """
    return Run(find_run(name, user_index(os.environ), stages=True).path, listener=listener)


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
    states = states_named([state] if isinstance(state, str) else state)
    begin = begin_of(since) if since is not None else None
    index = user_index(os.environ)
    found = list_runs(index, listener, states=states, site=site, since=begin, limit=limit)
    return [Run(status.folder, last=status, listener=listener) for status in found]


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
    statuses = follow(folders, user_index(os.environ), show, listener, most_s=most_s)
    for run, status in zip(several, statuses, strict=True):
        run.last = status
    failed = next((status for status in statuses if status.state != "COMPLETED"), None)
    if check and failed is not None:
        raise RunFailed(failed)
    return statuses


def diagnose(*logs: str | os.PathLike[str], stdin: BinaryIO | None = None, listener: Listener = LOGGED) -> Explanation:
    """Why any job failed, from its log files, the parts of one job; `-` is `stdin`. Raises UsageError."""
    from hpc_launch.api.explanation import Explanation
    from hpc_launch.service.diagnose import diagnose_logs, verdict_on

    diagnosis = diagnose_logs([os.fspath(log) for log in logs], stdin or io.BytesIO(), listener)
    return Explanation(diagnosis=diagnosis, verdict=verdict_on(diagnosis))
