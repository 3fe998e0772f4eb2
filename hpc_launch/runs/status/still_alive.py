"""Check that a run's attempts are over, so that the next one cannot train at the same time."""

from __future__ import annotations

import time

from hpc_launch.base.errors import Unreachable
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.status.attempt_view import AttemptView
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.schedulers.scheduler import Scheduler

UNSEEN_S = 60.0
"""A job younger than this may be missing from the scheduler's answer just because it is new."""


def still_alive(run: RunFolder, scheduler: Scheduler, *, ending: bool = False) -> str | None:
    """What of the run is still alive, as text; None where every attempt is over or void.

    Args:
        run: The run.
        scheduler: Queried at once.
        ending: A last attempt whose script has ended counts as over even if its job is still completing: only for a
            next job that Slurm starts after it (`--dependency=afterany`).

    Raises Unreachable where that cannot be determined.
    """
    tracker = RunTracker([run], lambda _: scheduler)
    tracker.poll(fresh=True)
    return alive_by(tracker, run, ending=ending)


def alive_by(tracker: RunTracker, run: RunFolder, *, ending: bool = False) -> str | None:
    """The same by the last poll of a tracker."""
    views = tracker.views(run)
    if not views:
        return tracker.last[run.name].reason or "it is being submitted"
    for view in views:
        if ending and view is views[-1] and script_ended(view):
            continue
        alive = _alive(view)
        if alive is not None:
            return f"attempt {view.files.attempt.number}: {alive}"
    return None


def script_ended(view: AttemptView) -> bool:
    """Whether the script has ended: Slurm may still be cleaning up the job."""
    return view.end is not None and not view.superseded and not view.requeued


def _alive(view: AttemptView) -> str | None:
    if view.files.void is not None or view.superseded:
        return None
    if view.job_id is None:
        return view.submitting or "its submission is not settled"
    if view.files.final is not None:
        return None
    if view.answer.error is not None:
        raise Unreachable(
            f"cannot determine whether job {view.job_id} is over: {view.answer.error}",
            hint="nothing was submitted; try again when the scheduler answers",
        )
    if view.live is not None:
        return f"job {view.job_id} is {view.live.state}"
    if view.final_record is not None:
        return None
    if view.end is None and view.submitted is not None and time.time() - view.submitted < UNSEEN_S:
        return f"job {view.job_id} was submitted a moment ago, and the scheduler does not show it yet"
    return None
