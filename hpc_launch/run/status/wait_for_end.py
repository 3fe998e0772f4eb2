"""Following one run to its end: a look at its files each second, a question to the scheduler at its own pace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from hpc_launch.run.layout import RunFolder
from hpc_launch.run.records.final_state import MAY_COME_BACK
from hpc_launch.run.records.journal import Journal
from hpc_launch.run.status.attempt_view import AttemptView
from hpc_launch.run.status.run_status import RunStatus
from hpc_launch.run.status.tracker import RunTracker

CONFIRM_S = 10.0
"""How far apart the two answers must be that call a job stuck, or over where it might yet be requeued."""

GONE_S = 60.0
"""The same for a job of which no source says what it is: accounting may be late."""

OnChange = Callable[[RunStatus], None]


@dataclass
class _Doubt:
    """A word that must be heard twice before it ends the waiting."""

    word: str | None = None
    since: float = 0.0

    def settled(self, word: str, answered: float, apart_s: float) -> bool:
        """Whether `word` was first heard `apart_s` seconds before the answer of the time `answered`."""
        if word != self.word:
            self.word, self.since = word, answered
        return answered - self.since >= apart_s


def wait(
    tracker: RunTracker,
    run: RunFolder,
    on_change: OnChange,
    poll_s: float = 1.0,
    *,
    sleep: Callable[[float], None] = time.sleep,
    goes_on: Callable[[RunStatus], bool] = lambda _: False,
) -> RunStatus:
    """Follow `run` until it is over, stuck for good, or known to nobody, and return that last status.

    `goes_on` is asked then, and while another attempt is due: it drives the run, and says whether that has an end yet.

    `on_change` is called for every status that differs in more than its age. A scheduler that does not answer is
    waited for as long as it takes, and the reason says so; the end of a run shows in its files all the same.
    """
    tracker.add(run)
    journal = Journal(run)
    journal.note("driver came")
    doubt = _Doubt()
    shown: RunStatus | None = None
    try:
        while True:
            status = tracker.poll(background=True)[run.name]
            if shown is None or shown.state != status.state:
                journal.note("state", state=status.state, reason=status.reason, job_id=status.job_id)
            if shown is None or _ageless(shown) != _ageless(status):
                on_change(status)
            shown = status
            due = status.state == "RETRYING"
            if (due or _over(status, tracker.cases(run), doubt)) and not goes_on(status):
                # Whoever drove it may have decided just now, and then the status says why.
                return tracker.poll(background=True)[run.name] if status.undecided else status
            sleep(poll_s)
    finally:
        journal.note("driver gone", state=shown.state if shown else None)


def _over(status: RunStatus, cases: list[AttemptView], doubt: _Doubt) -> bool:
    if not cases:
        return False
    answer = cases[-1].answer
    if status.state == "STUCK" and answer.record is not None:
        return doubt.settled("STUCK", answer.record.as_of, CONFIRM_S)
    if status.state == "UNKNOWN" and answer.error is None and answer.answered is not None:
        return doubt.settled("UNKNOWN", answer.answered, GONE_S)
    if status.final and status.attempts[-1].state in MAY_COME_BACK and cases[-1].files.final is None:
        return answer.answered is None or doubt.settled(status.attempts[-1].state, answer.answered, CONFIRM_S)
    doubt.word = None
    return status.final


def _ageless(status: RunStatus) -> RunStatus:
    return replace(status, age_s=None, attempts=tuple(replace(attempt, age_s=None) for attempt in status.attempts))
