"""Continue sweeps and pipelines, from outside their jobs and from the end of one.

Each driver that sees a run of a pipeline end submits what is then due.
"""

from __future__ import annotations

import os
import time

from hpc_launch.base.errors import UserError
from hpc_launch.base.json_records import read_record
from hpc_launch.prepare.prepare_pipeline import recorded_environment, submit_stage
from hpc_launch.prepare.submit_sweep import BUSY, advance
from hpc_launch.retry.drivers import NOTHING, DriverOutcome, Drivers, Schedulers
from hpc_launch.runs.groups.array_tasks import begun, in_arrays
from hpc_launch.runs.groups.group_folder import PipelineFolder, SweepFolder
from hpc_launch.runs.groups.pipeline_status import Found, StageRefusal, pipeline_status
from hpc_launch.runs.groups.sweep_status import sweep_states
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.run_info import why_not_own
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker, SchedulerFor
from hpc_launch.schedulers.scheduler import Scheduler


def drive_points(sweep: SweepFolder, index: Index, *, pause_s: float, longest_s: float) -> None:
    """Continue the points of a sweep until nothing is left to wait for."""
    end, schedulers, fresh = time.monotonic() + longest_s, Schedulers(), True
    while not os.path.exists(sweep.cancel):
        advance(sweep, schedulers.of, index)
        runs = begun(sweep)
        tracker = RunTracker(runs, schedulers.of)
        tracker.poll(fresh=fresh)
        fresh = False  # what another process asked lately will do, once the end of these jobs is known
        drivers = Drivers(tracker, index)
        drivers.drive_all(runs)
        if not any(drivers.due(status) for status in tracker.last.values()) or time.monotonic() > end:
            return
        time.sleep(pause_s)


ROOM_S = 30.0
"""How long to wait until jobs that ended at the same time have left the queue: less than the script gives the hook."""
POLL_S = 5.0
PARTS = 10
"""A point that ends submits others once there is room for such a part of the jobs in the queue."""


def submit_next_points(run: RunFolder, scheduler: Scheduler) -> DriverOutcome:
    """Submit points of the run's sweep that have no job yet, where there is room for them.

    Of points that end together, one submits. As long as another point runs, whose end looks again, few places are left
    to it. After the last one nobody would look, so it waits for a moment until other jobs have left the queue.
    """
    home = run.sweep
    if home is None:
        return NOTHING
    sweep, end = SweepFolder(home), time.monotonic() + ROOM_S
    while not os.path.exists(sweep.submitted):
        goes_on = _another_runs(sweep)
        progress = advance(sweep, lambda _: scheduler, pause_s=0.0, part=PARTS if goes_on else 0)
        if progress is None or not progress.left or progress.why == BUSY:
            break
        if progress.job_ids:
            return DriverOutcome("submitted", f"further points are job {', '.join(progress.job_ids)}")
        # A point that ended meanwhile found the lock taken, and left.
        if progress.queued == 1 or time.monotonic() > end or (goes_on and _another_runs(sweep)):
            break
        time.sleep(POLL_S)
    return NOTHING


def _another_runs(sweep: SweepFolder) -> bool:
    """Whether a point has a job that has not ended."""
    ended = 0
    for run in sweep.runs():
        files = [Reader().read(attempt) for attempt in run.attempts()[-1:]]
        ended += sum(one.end is not None or one.void is not None or one.final is not None for one in files)
    return ended < len(in_arrays(sweep))


def advance_pipeline(
    pipeline: PipelineFolder, found: Found, scheduler_of: SchedulerFor, index: Index, *, inside: bool = False
) -> list[DriverOutcome]:
    """Submit the stages that are due by these states. Returns what was done for each. Never raises a UserError."""
    if why_not_own(pipeline.run) is not None:
        return []
    outcomes = []
    for due in pipeline_status(pipeline, found, decide=True).due:
        run = pipeline.stage_run(due.stage.name, due.key)
        try:
            done = submit_stage(pipeline, due, found, scheduler_of(pipeline.run), index=index, inside=inside)
        except UserError as error:
            outcomes.append(DriverOutcome("waiting", f"{run.name} is due: {error}"))
            continue
        refusal = read_record(pipeline.refused(due.stage.name, due.key), StageRefusal) if done is None else None
        if done is not None:
            outcomes.append(DriverOutcome("submitted", f"{run.name}: submitted job {', '.join(done.job_ids) or '-'}"))
        elif refusal is not None:
            outcomes.append(DriverOutcome("ended" if refusal.final else "waiting", f"{run.name}: {refusal.reason}"))
    return outcomes


LOOK_AGAIN_S, ENDING_S = 2.0, 20.0
"""Between two looks at runs that are just ending, and for how long: their drivers may have looked too early, too."""


def drive_pipeline(
    pipeline: PipelineFolder, own: RunFolder, scheduler: Scheduler, index: Index, *, inside: bool
) -> list[DriverOutcome]:
    """Drive a pipeline from the end of a run of it: its other runs, and the stages that are due."""
    end, outcomes = time.monotonic() + ENDING_S, list[DriverOutcome]()

    def poll(runs: list[RunFolder]) -> dict[str, RunStatus]:
        # An end record counts at once: nobody may look later.
        tracker = RunTracker(runs, lambda _: scheduler, settle_s=0.0)
        found = tracker.poll(fresh=True)
        Drivers(tracker, index).drive_all(run for run in runs if run.path != own.path)
        return found

    while not os.path.exists(pipeline.cancel):
        with recorded_environment(pipeline):
            found = sweep_states(pipeline.stage_runs(), poll, lambda sweep: advance(sweep, lambda _: scheduler))
        more = advance_pipeline(pipeline, found, lambda _: scheduler, index, inside=inside)
        outcomes += more
        if any(one.kind in ("submitted", "ended") for one in more) and time.monotonic() < end:
            continue
        ending = any(isinstance(one, RunStatus) and one.state == "ENDING" for one in found.values())
        if not ending or time.monotonic() > end:
            break
        time.sleep(LOOK_AGAIN_S)
    return outcomes
