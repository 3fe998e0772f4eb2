"""Submit what is due of a pipeline, and drive its runs: what each driver does that sees one of them end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hpc_launch.base.errors import UserError
from hpc_launch.base.json_records import read_record
from hpc_launch.prepare.submit_stage import recorded_environment, submit_stage
from hpc_launch.prepare.submit_sweep import advance
from hpc_launch.retry.drive_sweep import start_queue
from hpc_launch.retry.drivers import DriverOutcome, Drivers
from hpc_launch.runs.groups.pipeline_folder import PipelineFolder
from hpc_launch.runs.groups.pipeline_status import Found, StageRefusal, pipeline_status
from hpc_launch.runs.groups.sweep_folder import SweepFolder
from hpc_launch.runs.groups.sweep_status import SweepStatus, stamps_of, with_sweeps
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.run_info import why_not_own
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.attempt_view import SourceLags
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.schedulers.scheduler import Scheduler

LOOK_AGAIN_S, ENDING_S = 2.0, 20.0
"""Between two looks at runs that are just ending, and for how long: their drivers may have looked too early, too."""


def advance_pipeline(
    pipeline: PipelineFolder,
    found: Found,
    scheduler: Callable[[RunFolder], Scheduler],
    index: Index,
    *,
    inside: bool = False,
) -> list[DriverOutcome]:
    """Submit the stages that are due by these states. Returns what was done for each. Never raises a UserError."""
    if why_not_own(pipeline.run) is not None:
        return []
    outcomes = []
    for due in pipeline_status(pipeline, found, decide=True).due:
        run = pipeline.stage_run(due.stage.name, due.key)
        try:
            done = submit_stage(pipeline, due, found, scheduler(pipeline.run), index=index, inside=inside)
        except UserError as error:
            outcomes.append(DriverOutcome("waiting", f"{run.name} is due: {error}"))
            continue
        refusal = read_record(pipeline.refused(due.stage.name, due.key), StageRefusal) if done is None else None
        if done is not None:
            outcomes.append(DriverOutcome("submitted", f"{run.name}: submitted job {', '.join(done.job_ids) or '-'}"))
            if due.stage.sweep and done.left:
                _queue_locally(run)
        elif refusal is not None:
            outcomes.append(DriverOutcome("ended" if refusal.final else "waiting", f"{run.name}: {refusal.reason}"))
    return outcomes


def drive_pipeline(
    pipeline: PipelineFolder, own: RunFolder, scheduler: Scheduler, index: Index, *, inside: bool
) -> list[DriverOutcome]:
    """Drive a pipeline from the end of a run of it: its other runs, and the stages that are due."""
    end, outcomes = time.monotonic() + ENDING_S, list[DriverOutcome]()
    while not os.path.exists(pipeline.cancel):
        found, tracker, runs = _look(pipeline, scheduler)
        Drivers(tracker, index).drive_all(run for run in runs if run.path != own.path)
        more = advance_pipeline(pipeline, found, lambda _: scheduler, index, inside=inside)
        outcomes += more
        if any(one.kind in ("submitted", "ended") for one in more) and time.monotonic() < end:
            continue
        if not any(one.state == "ENDING" for one in tracker.last.values()) or time.monotonic() > end:
            break
        time.sleep(LOOK_AGAIN_S)
    return outcomes


def _look(
    pipeline: PipelineFolder, scheduler: Scheduler
) -> tuple[dict[str, RunStatus | SweepStatus], RunTracker, list[RunFolder]]:
    """The states of all runs of a pipeline, with their tracker. An end record counts at once: nobody may look later."""
    stages = pipeline.stage_runs()
    sweeps = [SweepFolder(run) for run in stages if os.path.exists(run.sweep_info)]
    with recorded_environment(pipeline):
        for sweep in sweeps:
            advance(sweep, scheduler)
    stamps = stamps_of(sweeps)
    runs = [run for run in stages if not os.path.exists(run.sweep_info)]
    runs += [point for sweep in sweeps for point in sweep.begun()]
    tracker = RunTracker(runs, lambda _: scheduler, limits=SourceLags(settle=0.0))
    return with_sweeps(tracker.poll(fresh=True), sweeps, stamps), tracker, runs


def _queue_locally(run: RunFolder) -> None:
    """Start the process that starts the other points of a sweep, where no scheduler has a queue."""
    from hpc_launch.runs.records.run_info import read_info

    info = read_info(run)
    if info is not None and info.scheduler == "local":
        start_queue(SweepFolder(run))
