"""Submit again what failed or was cancelled: the next attempt of a run, points of a sweep, stages of a pipeline."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress

from hpc_launch.base.errors import SubmitRefused, UsageError, UserError
from hpc_launch.job.hostlist import expand
from hpc_launch.prepare.attempts import edited_since
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.prepare.submit_sweep import SweepProgress, room_for, send_points, submit_points
from hpc_launch.retry.decision import next_attempt
from hpc_launch.retry.drivers import Schedulers
from hpc_launch.runs.groups.array_tasks import PointAttempt
from hpc_launch.runs.groups.group_folder import (
    SweepFolder,
    as_pipeline,
    one_submitter,
    pipeline_of,
    point_number,
    reopen,
    stage_of,
    without_run,
)
from hpc_launch.runs.groups.job_arrays import (
    Sending,
    refuse_cancelled,
    reopen_sweep,
    settle_arrays,
    unsubmitted,
    was_never_submitted,
)
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.plan_record import changed_size, newest_plan
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.runs.status.tracker import RunTracker, alive_by
from hpc_launch.runs.submitting.submit_attempt import submit_next
from hpc_launch.schedulers.scheduler import Scheduler, scheduler_for
from hpc_launch.service.listener import QUIET, Listener
from hpc_launch.service.poll import poll_pipeline, poll_runs, poll_sweep
from hpc_launch.service.submit import (
    Submitted,
    submitted_points,
    submitted_run,
    submitted_stages,
    warn_about_node_health,
    warn_about_shared_checkpoints,
)


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
        attempts: dict[int, PointAttempt] = {}
        faults: list[str] = []
        job: PreparedJob | None = None
        for run in runs:
            try:
                alive = alive_by(tracker, run)
                if alive is not None:
                    raise UsageError(f"not over: {alive}")
                job, prepared = next_attempt(run, sets=sets, exclude=exclude)
                last = tracker.views(run)[-1].files.attempt.number
                attempts[point_number(run)] = PointAttempt(last + 1, prepared, job.plan)
            except UserError as error:
                faults.append(f"{run.name}: {error}")
        if job is None:
            return SweepProgress(()), faults
        index.resubmitting(sweep.run)
        room = room_for(sweep, scheduler, job)
        now = dict(list(attempts.items())[: room.points])
        job_ids, why = send_points(Sending(sweep, scheduler, index), room, now, must=True)
        left = len(attempts) - len(now)
        return SweepProgress(tuple(job_ids), left, why or (room.why_left if left else None)), faults


def resubmit(
    run: RunFolder,
    index: Index,
    listener: Listener = QUIET,
    *,
    sets: Sequence[str] = (),
    exclude: Sequence[str] = (),
    wait: bool = False,
    confirmed: bool = False,
) -> Submitted:
    """Submit the next attempt of a run, or what failed or was cancelled of a sweep, a pipeline or a stage.

    `sets`, `exclude`: further `--set` options, and nodes that it must not use. Unless `confirmed`, the listener is
    asked before a run that COMPLETED is repeated. `wait`: as for `submit`.

    Raises UsageError where there is nothing to repeat, and what a first submission raises.
    """
    for nodes in exclude:
        try:
            expand(nodes)
        except ValueError as error:
            raise UsageError(f"--exclude {nodes}: {error}", "write nodes as n3 or n[3-5]") from error
    if os.path.exists(run.pipeline_info) or (run.pipeline is not None and not run.exists):
        return _resubmit_stages(run, index, listener, sets=sets, exclude=exclude)
    if (part_of := pipeline_of(run)) is not None:
        reopen(part_of, [stage_of(run)])
    if os.path.exists(run.sweep_info):
        return _resubmit_sweep(run, index, listener, sets=sets, exclude=exclude)
    if not confirmed:
        _confirm_completed(run, index, listener)
    prepared_job, prepared = next_attempt(run, sets=sets, exclude=exclude)
    if words := changed_size(newest_plan(run), prepared.plan.world_size):
        listener.say(words)
    listener.warn(prepared_job.warnings)
    warn_about_node_health(prepared_job.plan, listener)
    warn_about_shared_checkpoints(prepared_job.plan, index, listener, run)
    if edited := edited_since(run):
        listener.say(f"{edited} has changed since; this run uses the job file it was submitted with")
    with listener.doing("submitting the job") as doing:
        scheduler = scheduler_for(prepared.scheduler, prepared.plan.cluster)
        submitted = submit_next(run, prepared, scheduler, index=index, wait=doing if wait else None)
    return submitted_run(*submitted)


def _confirm_completed(run: RunFolder, index: Index, listener: Listener) -> None:
    """Ask before a run that COMPLETED is repeated. Raises UsageError after a no, and where nobody answers."""
    (status,) = poll_runs([run], index, listener, drive=False)
    if status.state != "COMPLETED":
        return
    name = shlex.quote(run.name)
    done = f"{name} COMPLETED" + (f" at step {status.progress.step}" if status.progress.step is not None else "")
    if not listener.answers:
        hint = f"hpc-launch resubmit {name} --yes repeats it (in Python, `confirmed=True`)"
        raise UsageError(f"{done}; nothing was submitted", hint)
    if not listener.confirm(f"{done}. Submit another attempt?"):
        raise UsageError("nothing was submitted")


def _resubmit_sweep(
    run: RunFolder, index: Index, listener: Listener, *, sets: Sequence[str], exclude: Sequence[str]
) -> Submitted:
    """Submit the points that failed or were cancelled, each as the next attempt of its run, and those without a job."""
    sweep, scheduler = SweepFolder(run), Schedulers().of(run)
    status = poll_sweep(run, index, listener, drive=False)
    with suppress(FileNotFoundError):
        sweep.refused.unlink()
    due = [point for one in status.points if is_repeated(one.status, point := sweep.point(one.point.number))]
    changed = bool(sets or exclude)
    left = [] if os.path.exists(sweep.submitted) else unsubmitted(sweep)
    if changed and status.cancelled and left:
        what = f"{len(left)} points of {sweep.name} were never submitted: --set and --exclude cannot apply to them"
        raise UsageError(what, "resubmit it without them, or submit the job file again with --set")
    if changed and due:
        next_attempt(due[0], sets=sets, exclude=exclude)  # raises what is wrong with the options
    reopen_sweep(sweep)
    progress = submit_points(sweep, scheduler, index=index) if left and not changed else SweepProgress(())
    again, faults = resubmit_points(sweep, due, scheduler, sets=sets, exclude=exclude, index=index)
    job_ids = [*progress.job_ids, *again.job_ids]
    for fault in faults:
        listener.say(fault)
    if not job_ids and not progress.left and not again.left:
        what = "nothing was submitted" if faults else f"no point of {sweep.name} failed or was cancelled"
        raise UsageError(what, f"hpc-launch status {sweep.name} lists its points")
    progress = SweepProgress(tuple(job_ids), progress.left + again.left, again.why or progress.why)
    code = SubmitRefused.exit_code if faults else 0
    return submitted_points(sweep, progress, repeated_left=again.left > 0, exit_code=code)


def _resubmit_stages(
    folder: RunFolder, index: Index, listener: Listener, *, sets: Sequence[str], exclude: Sequence[str]
) -> Submitted:
    """Start again what failed or was cancelled of a pipeline, or of a stage that has no run, or several."""
    pipeline, stage = as_pipeline(folder), None
    if pipeline is None:
        pipeline, stage = without_run(folder)
    before = poll_pipeline(pipeline.run, index, listener, drive=False)
    chosen = [one for one in before.stages if stage is None or one.stage.name == stage.name]
    runs = [run for one in chosen for run in one.runs]
    ending = next((run for run in runs if not run.final), None)
    if ending is not None and os.path.exists(pipeline.cancel):
        raise UsageError(f"{ending.run} is not over: {ending.state}", f"hpc-launch watch {ending.run}")
    if (sets or exclude) and (later := [one.stage.name for one in chosen if not one.runs]):
        listener.say(f"--set and --exclude do not apply to stages that have not begun: {', '.join(later)}")
    done, code = reopen(pipeline, [one.stage.name for one in chosen]), 0
    for one in runs:
        if one.final and not one.undecided and one.state != "COMPLETED":
            try:
                again = resubmit(RunFolder(one.folder), index, listener, sets=sets, exclude=exclude, confirmed=True)
                listener.say(f"{again.run.name}  job {', '.join(again.job_ids)}")
                done, code = True, code or again.exit_code
            except UserError as error:
                listener.fail(error)
                code = error.exit_code
    if not done and code == 0 and not any(one.due for one in chosen):
        waits = next((one.reason for one in chosen if not one.over and not one.runs), None)
        raise UsageError(f"{folder.name} has nothing to start again{f': it {waits}' if waits else ''}")
    return submitted_stages(poll_pipeline(pipeline.run, index, listener), code)
