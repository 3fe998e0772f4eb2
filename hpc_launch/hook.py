"""The driver that a job runs at its end, and that a sentinel job runs: `python -m hpc_launch.hook ATTEMPT_FOLDER`.

With `--here` the job's script can start the next attempt itself; `--outside` is for a sentinel job, `--successor=JOB`
for the run's successor, which waited for that job and can start the next attempt, too. `--well` is for a point of a
sweep, or a stage of a pipeline, that ended well: nothing is due for the run itself. The sentinel of an array of a sweep
names the array's folder.
`--during` is for a training that others follow.

It uses the records in the run folder and detects nothing again. Its output goes to hook.log in the attempt's folder.
It always exits with 0: an error here must not change the outcome of the job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from hpc_launch.agent.checkpoints import newest_first, why_incomplete
from hpc_launch.base.errors import UserError
from hpc_launch.retry.drivers import DriverOutcome
from hpc_launch.retry.notifications import deliver, tell_end
from hpc_launch.retry.recover_run import recover
from hpc_launch.runs.checkpoint_files import rule_of
from hpc_launch.runs.groups.group_folder import pipeline_of
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.run_info import read_info
from hpc_launch.runs.status.attempt_view import AttemptView
from hpc_launch.runs.status.tracker import RunTracker
from hpc_launch.schedulers.scheduler import Scheduler, scheduler_for

POLL_S = 2.0
LONGEST_S = 540.0
"""How long a driver outside the job waits for a pause or the final state: less than a sentinel's time limit."""
SUCCESSOR_S = 100.0
"""The same for the successor, on nodes that stand idle."""
UNSURE_S = 30.0
"""How long it looks again where nothing is due: Slurm may report the end of the job before it a little late."""
WRITING_S = 300.0
"""How long a driver waits for a checkpoint that is being written."""
_SUCCESSOR = "--successor="


def main(arguments: list[str]) -> int:
    """Do what is due for the run of this attempt."""
    folder = Path(arguments[0]).absolute()
    run, here = RunFolder(folder.parents[1]), "--here" in arguments
    waited = next((word.removeprefix(_SUCCESSOR) for word in arguments if word.startswith(_SUCCESSOR)), None)
    inside = waited is None and "--outside" not in arguments
    if inside:
        # Slurm may signal the whole job again while the hook runs, for instance when a preemption's grace period ends.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        info = read_info(run)
        scheduler = scheduler_for(info.scheduler, info.cluster) if info else scheduler_for("")
        if "--during" in arguments:
            _drive_during(run, folder / "end.json", scheduler)
            return 0
        if os.path.exists(run.sweep_info):
            _drive_sweep(run)
            _drive_pipeline(run, scheduler, inside=False)
            return 0
        tracker, over = RunTracker([run], lambda _: scheduler), True
        if "--well" not in arguments:
            move = _drive(run, tracker, scheduler, int(folder.name), inside=inside, here=here, waited=waited)
            _report(move)
            over = move.kind != "submitted"
        if over and run.sweep is not None:
            from hpc_launch.retry.drive_groups import submit_next_points

            _report(submit_next_points(run, scheduler))
        _drive_pipeline(run, scheduler, inside=inside)
        told = tell_end(run, tracker.poll()[run.name]) if not inside else None
        if told is not None:
            deliver(told, wait=True)
    except (UserError, OSError, ValueError) as error:
        print(f"[hpc-launch] left to the next monitor: {error}", flush=True)
    return 0


def _drive_sweep(run: RunFolder) -> None:
    """Continue the points of a sweep after one of its arrays."""
    from hpc_launch.retry.drive_groups import drive_points
    from hpc_launch.runs.groups.group_folder import SweepFolder
    from hpc_launch.runs.run_index import user_index

    index = user_index()
    drive_points(SweepFolder(run), index, pause_s=POLL_S, longest_s=LONGEST_S)


def _drive_pipeline(run: RunFolder, scheduler: Scheduler, *, inside: bool) -> None:
    """Submit what is due of the run's pipeline. Raises as the run's driver does."""
    pipeline = pipeline_of(run)
    if pipeline is None:
        return
    from hpc_launch.retry.drive_groups import drive_pipeline
    from hpc_launch.runs.run_index import user_index

    for move in drive_pipeline(pipeline, run, scheduler, user_index(), inside=inside):
        _report(move)


def _drive_during(run: RunFolder, end: Path, scheduler: Scheduler) -> None:
    """Drive the run's pipeline while the run trains; again while a checkpoint is being written."""
    begun = time.monotonic()
    while True:
        _drive_pipeline(run, scheduler, inside=True)
        if not _is_writing(run) or os.path.exists(end) or time.monotonic() - begun > WRITING_S:
            return
        time.sleep(5 * POLL_S)


def _is_writing(run: RunFolder) -> bool:
    """Whether the newest checkpoint of a run is incomplete."""
    rule = rule_of(run)
    newest = next(iter(newest_first(rule)), None) if rule is not None else None
    return rule is not None and newest is not None and why_incomplete(rule, newest) is not None


def _report(move: DriverOutcome) -> None:
    print(f"[hpc-launch] {move.kind}{f': {move.words}' if move.words else ''}", flush=True)


def _drive(
    run: RunFolder,
    tracker: RunTracker,
    scheduler: Scheduler,
    number: int,
    *,
    inside: bool,
    here: bool,
    waited: str | None,
) -> DriverOutcome:
    """Drive the run once from inside the job; from outside, until there is nothing left to wait for.

    The successor, which `waited` for that job, does so until an attempt is there for this job or another one.
    """
    began, patience = time.monotonic(), {} if inside else {"waiting": LONGEST_S}
    if waited is not None:
        patience = {"waiting": SUCCESSOR_S, "nothing": UNSURE_S}
    while True:
        tracker.poll(fresh=inside or waited is not None)
        if _later(tracker.views(run), number, waited):
            return DriverOutcome("nothing", "a later attempt exists")
        move = recover(run, tracker, scheduler, inside=inside, here=here, successor=waited is not None)
        if time.monotonic() - began >= patience.get(move.kind, 0.0):
            return move
        time.sleep(POLL_S)


def _later(views: list[AttemptView], number: int, waited: str | None) -> bool:
    """Whether there is a later attempt in another job."""
    if waited is not None:
        return not views or views[-1].job_id not in {None, waited}
    jobs = {view.files.attempt.number: view.job_id for view in views}
    return any(at > number and job != jobs.get(number) for at, job in jobs.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
