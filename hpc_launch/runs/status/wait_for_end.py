"""Follow runs to their end: read its records every second, query the scheduler at its own rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import MAY_COME_BACK
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker

CONFIRM_S = 10.0
"""Time between two answers that confirm that a job is stuck, or over where it might still be requeued, or that the run
folder is missing."""

GONE_S = 60.0
"""The same for a job that no source knows: accounting may be late."""

POLL_S = 1.0
SHORT_RUN_S = 0.5
"""Seconds between two looks, at a short run of `drill` or `doctor`."""

Show = Callable[[Iterable[RunStatus]], None]
"""Called with the statuses of all runs again and again, whether they changed or not."""


@dataclass
class Confirmation:
    """A state that must be seen twice before it ends the waiting."""

    state: str | None = None
    since: float = 0.0

    def confirmed(self, state: str, answered: float, apart_s: float) -> bool:
        """Whether `state` was first seen at least `apart_s` seconds before this answer."""
        if state != self.state:
            self.state, self.since = state, answered
        return answered - self.since >= apart_s


def pauses(
    tracker: RunTracker,
    runs: Sequence[RunFolder],
    show: Show = lambda _: None,
    *,
    continues: Callable[[RunStatus], bool] = lambda _: False,
) -> Iterator[float]:
    """Look at runs until each is over, stuck for good, or unknown to all sources. Yields the seconds between two looks.

    `show`: called with the statuses of all at each look. `continues`: called at the end of a run and while another
    attempt is due: drives the run and returns whether it continues.

    A scheduler that does not answer is waited for without limit, and the reason says so; the end of a run is in its
    records all the same.
    """
    confirmations = {run.name: Confirmation() for run in runs}
    ended: dict[str, str] = {}
    looked_again = False
    while True:
        statuses = tracker.poll(background=True)
        show(statuses.values())
        for run in runs:
            status = statuses[run.name]
            # A stuck run may have become unblocked, and a run that lost its nodes may have been requeued.
            if ended.get(run.name) == status.state:
                continue
            ended.pop(run.name, None)
            due = status.state == "RETRYING"
            if (due or over(status, tracker, run, confirmations[run.name])) and not continues(status):
                ended[run.name] = status.state
        all_ended = all(run.name in ended for run in runs)
        # Another driver may decide at this moment: then the run continues, or its status says why it does not.
        if all_ended and (looked_again or not any(status.undecided for status in statuses.values())):
            break
        looked_again = all_ended
        yield POLL_S


def poll_until(
    tracker: RunTracker,
    run: RunFolder,
    wanted: Callable[[RunStatus], bool],
    *,
    seconds: float | None = None,
    on_poll: Callable[[RunStatus], None] = lambda _: None,
) -> RunStatus:
    """The first status that is `wanted`, final or stuck; after `seconds`, the last one. `on_poll` sees those before."""
    begin = time.monotonic()
    while True:
        status = tracker.poll(background=True)[run.name]
        over = status.final or status.state == "STUCK" or status.folder_missing
        if wanted(status) or over or (seconds is not None and time.monotonic() - begin > seconds):
            return status
        on_poll(status)
        time.sleep(SHORT_RUN_S)


def over(status: RunStatus, tracker: RunTracker, run: RunFolder, confirmation: Confirmation) -> bool:
    """Whether the run has ended, is stuck for good or unknown to all sources. Doubtful answers must be confirmed."""
    views = tracker.views(run)
    if status.folder_missing:
        return confirmation.confirmed("folder missing", tracker.now, CONFIRM_S)
    if not views:
        return False
    answer = views[-1].answer
    if status.state == "STUCK" and answer.record is not None:
        return confirmation.confirmed("STUCK", answer.record.as_of, CONFIRM_S)
    if status.state == "UNKNOWN" and answer.error is None and answer.answered is not None:
        return confirmation.confirmed("UNKNOWN", answer.answered, GONE_S)
    if status.final and status.attempts[-1].state in MAY_COME_BACK and views[-1].files.final is None:
        return answer.answered is None or confirmation.confirmed(status.attempts[-1].state, answer.answered, CONFIRM_S)
    confirmation.state = None
    return status.final
