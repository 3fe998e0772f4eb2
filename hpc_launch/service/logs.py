"""The output of a run: of an attempt, or of all from one on, as it is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from hpc_launch.base.errors import UsageError
from hpc_launch.runs.layout import AttemptFolder, RunFolder
from hpc_launch.runs.rank_logs import RankLogLine, follow
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.wait_for_end import Confirmation, over
from hpc_launch.schedulers.scheduler import ENDED_STATES
from hpc_launch.service.listener import QUIET, Listener
from hpc_launch.service.poll import tracker_of

LOOK_S = 1.0
"""Seconds between two queries of the run's state while its output is followed."""
_OVER = ENDED_STATES | {"VOID", "REQUEUED"}

Saw = Callable[[RunStatus], None]


def attempt_with_logs(run: RunFolder, number: int | None, role: str | None) -> AttemptFolder:
    """The attempt, by default the newest, or the folder of a role in it. Raises UsageError where there is none."""
    attempts = run.attempts()
    newest = attempts[-1].number if attempts else 1
    if number is not None and number not in {attempt.number for attempt in attempts}:
        raise UsageError(f"{run.name} has no attempt {number}", f"the newest is attempt {newest}")
    attempt = run.attempt(number or newest)
    if role is None:
        return attempt
    states = Reader().read(attempt).roles
    names = [one.name for one in states.roles] if states is not None else []
    if role not in names:
        raise UsageError(f"attempt {attempt.number} has no role {role}", f"its roles: {', '.join(names) or 'none'}")
    return attempt.role(role)


def run_logs(
    run: RunFolder,
    index: Index,
    listener: Listener = QUIET,
    *,
    node: int | None = None,
    rank: int | None = None,
    role: str | None = None,
    number: int | None = None,
    first: int | None = None,
    following: bool = True,
    sleep: Callable[[float], None] = time.sleep,
    saw: Saw = lambda _: None,
) -> Iterator[RankLogLine]:
    """Yield lines as they are written, until the run ends; with `number`, until that attempt ends. Raises UsageError.

    Args:
        listener: Hears when another attempt begins.
        node, rank, role: Only the log of this node, the lines of this rank, this role of the job.
        number: Only this attempt. Default: the newest and all that follow.
        first: The first attempt of those that are followed.
        following: Otherwise, only what there is of one attempt.
        sleep: How to wait for so many seconds.
        saw: Called with the state of the run each time it is queried.
    """
    if not following:
        yield from follow(attempt_with_logs(run, number, role), node=node, rank=rank)
        return
    current = attempt_with_logs(run, number or first, None).number
    tracker, confirmation = tracker_of([run], index), Confirmation()
    looked, run_is_over, states = -LOOK_S, False, dict[int, str]()

    def complete() -> bool:
        """Whether the attempt will write no more output."""
        nonlocal looked, run_is_over, states
        if time.monotonic() - looked >= LOOK_S:
            looked = time.monotonic()
            status = tracker.poll(background=True)[run.name]
            saw(status)
            run_is_over = over(status, tracker, run, confirmation)
            states = {attempt.number: attempt.state for attempt in status.attempts}
        ended = max(states, default=current) > current or (number is not None and states.get(current) in _OVER)
        return run_is_over or ended

    while True:
        attempt = run.attempt(current) if role is None else run.attempt(current).role(role)
        yield from follow(attempt, complete, node=node, rank=rank, sleep=sleep)
        if number is not None or run_is_over:
            return
        current += 1
        listener.say(f"attempt {current}")
