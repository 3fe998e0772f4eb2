"""Whether a run's last attempt is over for good, so that the next one cannot train beside it."""

from __future__ import annotations

import time

from hpc_launch.base.errors import Unreachable
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.records import values
from hpc_launch.run.records.final_state import record_of
from hpc_launch.run.status.attempt_view import AttemptView
from hpc_launch.run.status.tracker import RunTracker
from hpc_launch.schedulers.scheduler import Scheduler

UNSEEN_S = 60.0
"""A job younger than this may be missing from the scheduler's answer only because it is so new."""


def still_alive(run: RunFolder, scheduler: Scheduler, *, ending: bool = False) -> str | None:
    """What is still alive of the run, in words; None where every attempt is over for good or void.

    Args:
        run: The run.
        scheduler: Asked at once.
        ending: A last attempt whose script has ended counts as over although its job is not quite: only for a next
            job that Slurm starts after that one (`--dependency=afterany`).

    Raises Unreachable where it cannot tell.
    """
    tracker = RunTracker([run], lambda _: scheduler)
    status = tracker.poll(fresh=True)[run.name]
    cases = tracker.cases(run)
    if not cases:
        return status.reason or "it is just being submitted"
    for case in cases:
        if ending and case is cases[-1] and script_ended(case):
            continue
        alive = _alive(case)
        if alive is not None:
            return f"attempt {case.files.attempt.number}: {alive}"
    return None


def script_ended(case: AttemptView) -> bool:
    """Whether the script is at its end: what is left of the job is Slurm's own cleaning up."""
    return case.end is not None and not case.superseded and not case.requeued


def _alive(case: AttemptView) -> str | None:
    if case.files.void is not None or case.superseded:
        return None
    if case.job_id is None:
        return case.submitting or "its submission is not settled"
    if record_of(case.files.final) is not None:
        return None
    if case.answer.error is not None:
        raise Unreachable(
            f"whether job {case.job_id} is over cannot be told now: {case.answer.error}",
            hint="nothing was submitted; try again when the scheduler answers",
        )
    if case.live is not None:
        return f"job {case.job_id} is {case.live.state}"
    if case.last_word is not None:
        return None
    submitted = values.seconds(case.files.job.get("submitted")) if case.files.job else None
    if case.end is None and submitted is not None and time.time() - submitted < UNSEEN_S:
        return f"job {case.job_id} was submitted a moment ago, and the scheduler does not show it yet"
    return None
