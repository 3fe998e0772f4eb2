"""Submit the next attempts of points that failed or were cancelled: as few job arrays as for the first ones."""

from __future__ import annotations

from collections.abc import Sequence

from hpc_launch.base.errors import UsageError, UserError
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.prepare.submit_sweep import SweepProgress, room_for, send_points
from hpc_launch.retry.next_attempt import next_attempt
from hpc_launch.runs.groups.arrays import Sending, refuse_cancelled, settle_arrays, was_never_submitted
from hpc_launch.runs.groups.sweep_folder import SweepFolder, one_submitter, point_number
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker, alive_by
from hpc_launch.runs.submitting.run_store import PreparedAttempt
from hpc_launch.schedulers.scheduler import Scheduler


def is_repeated(status: RunStatus, run: RunFolder) -> bool:
    """Whether `resubmit SWEEP` repeats a point: it did not end well, or an earlier `resubmit` of it came to nothing."""
    attempts = run.attempts()
    if not attempts:
        return False
    if was_never_submitted(attempts[-1]):
        return len(attempts) > 1  # the first attempt is left to `submit_points`
    return status.state in ("FAILED", "STOPPED", "CANCELLED")


def resubmit_points(
    sweep: SweepFolder,
    runs: Sequence[RunFolder],
    scheduler: Scheduler,
    *,
    sets: Sequence[str],
    exclude: Sequence[str],
    index: Index,
) -> tuple[SweepProgress, list[str]]:
    """Submit the next attempt of each of these points; also what is wrong with some of them, as text.

    Raises:
        UsageError: Another process submits points of the sweep, or it was cancelled.
        Unreachable: The scheduler does not answer.
    """
    if not runs:
        return SweepProgress(()), []
    refuse_cancelled(sweep)
    with one_submitter(sweep) as alone:
        if not alone:
            raise UsageError(f"another process is submitting {sweep.name}", f"hpc-launch status {sweep.name}")
        settle_arrays(sweep, scheduler)
        tracker = RunTracker(runs, lambda _: scheduler)
        tracker.poll(fresh=True)
        jobs: dict[int, PreparedJob] = {}
        attempts: dict[int, PreparedAttempt] = {}
        follows: dict[int, int] = {}
        faults: list[str] = []
        for run in runs:
            number = point_number(run)
            try:
                alive = alive_by(tracker, run)
                if alive is not None:
                    raise UsageError(f"not over: {alive}")
                jobs[number], attempts[number] = next_attempt(run, sets=sets, exclude=exclude)
                follows[number] = tracker.views(run)[-1].files.attempt.number
            except UserError as error:
                faults.append(f"{run.name}: {error}")
        if not attempts:
            return SweepProgress(()), faults
        index.resubmitting(sweep.run)
        room = room_for(sweep, scheduler, next(iter(jobs.values())))
        now = dict(list(attempts.items())[: room.points])
        job_ids, why = send_points(Sending(sweep, scheduler, index), room, jobs, now, follows, must=True)
        left = len(attempts) - len(now)
        return SweepProgress(tuple(job_ids), left, why or (room.why_left(len(now)) if left else None)), faults
