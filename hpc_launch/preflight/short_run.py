"""A short run that a check starts, follows and ends: nothing of it is left in the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from hpc_launch.drive.attempts import first_attempt
from hpc_launch.drive.prepare import PreparedJob
from hpc_launch.run.layout import RunFolder
from hpc_launch.run.run_index import Index
from hpc_launch.run.status.run_status import RunStatus
from hpc_launch.run.status.tracker import RunTracker
from hpc_launch.run.status.wait_for_end import poll_until
from hpc_launch.run.submitting.cancel_run import cancel_run
from hpc_launch.run.submitting.submit_attempt import submit_new
from hpc_launch.schedulers.scheduler import Scheduler

POLL_S = 1.0


class Context(Struct, frozen=True):
    """What starts and follows short runs."""

    scheduler: Scheduler
    tracker_of: Callable[[RunFolder], RunTracker]
    say: Callable[[str], None]
    index: Index | None = None


def follow_short_run(
    prepared: PreparedJob,
    sets: Sequence[str],
    context: Context,
    enough: Callable[[RunStatus], bool],
    *,
    programs: Sequence[Path] = (),
) -> tuple[RunFolder, RunStatus]:
    """Submit, follow until the status is `enough`, final or stuck, and cancel what is left. Raises as a submission.

    `programs`: Python modules that the job imports.
    """
    attempt = replace(first_attempt(prepared, sets), programs=tuple(programs))
    run, _, job_id = submit_new(attempt, context.scheduler, index=context.index)
    context.say(f"{run.name}: job {job_id}")
    said: list[str] = []

    def tell(status: RunStatus) -> None:
        words = f"{status.state}{f' ({status.reason})' if status.reason else ''}"
        if said[-1:] != [words]:
            said.append(words)
            context.say(f"{run.name}: {words}")

    try:
        return run, poll_until(context.tracker_of(run), run, enough, POLL_S, on_poll=tell)
    finally:
        cancel_run(run, context.scheduler)
