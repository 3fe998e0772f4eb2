"""Create a sweep, and submit its points as few job arrays, as far as the limits of the queue allow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from msgspec import Struct, structs

from hpc_launch.base.errors import SubmitRefused, UsageError, UserError
from hpc_launch.base.files import read_text, write_atomic
from hpc_launch.prepare.attempts import first_attempt, prepare, resolved_yaml, with_sentinel
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.prepare.prepare_sweep import PreparedSweep, recorded_points
from hpc_launch.runs.groups.array_tasks import PointAttempt, create_point
from hpc_launch.runs.groups.group_folder import SweepFolder, SweepRecord, one_submitter
from hpc_launch.runs.groups.job_arrays import (
    Sending,
    chunks,
    is_settled,
    refuse_cancelled,
    settle_arrays,
    submit_array,
    unsubmitted,
)
from hpc_launch.runs.layout import RunFolder
from hpc_launch.runs.records.attempt_files import RETRY_S, Reader
from hpc_launch.runs.records.plan_record import plan_record
from hpc_launch.runs.records.submission import array_of, was_refused
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.run_store import PreparedAttempt, create_run, refusing, write_after
from hpc_launch.runs.submitting.submit_attempt import LOOKUP_S, Wait, submit_next
from hpc_launch.schedulers.scheduler import ENDED_STATES, Scheduler
from hpc_launch.script.render import render_array


class SweepRoom(Struct, frozen=True):
    """What bounds a submission of points."""

    points: int
    """How many may be submitted now."""
    queued: int | None = None
    """Jobs of the user in the queue, the one that asks included; None: not asked."""
    array_size: int = 0
    """The most tasks of an array; 0 without job arrays, where each point is a job."""
    at_once: int | None = None
    """How many tasks of an array may run at the same time."""

    @property
    def why_left(self) -> str:
        """Why points are left."""
        return "the limit of submitted jobs is reached" if self.array_size else "they wait for the points before them"


def room_for(sweep: SweepFolder, scheduler: Scheduler, first: PreparedJob) -> SweepRoom:
    """What may be submitted now of a sweep with jobs like this one. Raises Unreachable."""
    room = scheduler.array_room(*(first.plan.option(name) for name in ("account", "partition", "qos")))
    if room is None:
        return SweepRoom(max(0, (sweep.record.limit or 1) - _active_points(sweep, scheduler)))
    resolved = first.loaded.resolved
    queue = resolved.site.queues.get(resolved.site.queue_of(resolved.job.queue))
    free, at_once = [len(sweep.record.points)], [sweep.record.limit]
    if room.more is not None:
        free.append(room.more)
    if queue is not None:
        at_once.append(queue.max_jobs)
        if queue.max_submitted is not None:
            free.append(max(0, queue.max_submitted - room.queued))
    together = min((one for one in at_once if one is not None), default=None)
    return SweepRoom(min(free), room.queued, room.max_array_size, together)


def send_points(
    sending: Sending,
    room: SweepRoom,
    attempts: Mapping[int, PointAttempt],
    *,
    must: bool = False,
) -> tuple[list[str], str | None]:
    """Submit attempts of points as few arrays, or as jobs: their ids, and why the scheduler refused some.

    Raises what `submit_array` raises; SubmitRefused only with `must`, where nothing was submitted.
    """
    sweep, job_ids = sending.sweep, list[str]()
    if not room.array_size:
        for number, attempt in attempts.items():
            refuse_cancelled(sweep)
            with refusing(sweep.run.path):
                run = create_point(sweep, number)
            try:
                job_ids.append(submit_next(run, attempt.prepared, sending.scheduler, index=sending.index)[2])
            except UsageError:
                break  # another process was first
            if os.path.exists(sweep.cancel):  # while it was being submitted
                cancel_run(run, sending.scheduler, undecided=True)
        return job_ids, None
    scripts: dict[int, str] = {}
    alike: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for number, attempt in attempts.items():
        plan = attempt.plan
        if id(plan) not in scripts:
            scripts[id(plan)] = render_array(plan)
        alike.setdefault((attempt.prepared.options, scripts[id(plan)]), []).append(number)
    try:
        for (own, script), numbers in alike.items():
            for tasks in chunks(numbers, room.array_size):
                options = (*own, *_after_others(sweep))
                job_id = submit_array(sending, script, tasks, attempts, options=options, at_once=room.at_once)
                job_ids += [job_id] if job_id is not None else []
                with suppress(OSError):
                    os.unlink(sweep.refused)
    except SubmitRefused as error:
        with suppress(OSError):
            write_atomic(sweep.refused, f"{error.how}: {error}\n")
        if must and not job_ids:
            raise
        return job_ids, str(error)
    return job_ids, None


def _after_others(sweep: SweepFolder) -> tuple[str, ...]:
    """With a limit, an array waits for those before it: Slurm's `%` counts each array by itself."""
    if sweep.record.limit is None:
        return ()
    files = [Reader().read(array) for array in sweep.arrays()]
    before = [array_of(one.job_id) for one in files if one.job_id is not None]
    return (f"--dependency=afterany:{':'.join(before)}",) if before else ()


BUSY = "another process is submitting them"
"""Why points are left."""


class SweepProgress(Struct, frozen=True):
    """The outcome of a submission: the arrays or jobs of this call, and how many points are left."""

    job_ids: tuple[str, ...]
    left: int = 0
    why: str | None = None
    """Why points are left."""
    queued: int | None = None
    """Jobs of the user in the queue before, the one that asks included; None: not asked."""


def create_sweep(
    prepared: PreparedSweep,
    sets: Sequence[str],
    *,
    index: Index | None = None,
    at: RunFolder | None = None,
) -> SweepFolder:
    """Write the sweep's folder with the record of its points. Raises Refused; nothing is left on disk then.

    `at`: as for `create_run`.
    """
    first = (first_attempt if at is None else prepare)(prepared.first, sets, exclude=())
    first = replace(first, resolved_yaml=resolved_yaml(prepared.resolved))
    sweep = prepared.sweep
    record = SweepRecord(
        points=prepared.points,
        sets=tuple(sets),
        limit=sweep.limit,
        metric=sweep.metric,
        goal=sweep.goal,
        job_folder=first.plan.job_folder,
        job_file=first.plan.job_file,
    )
    run = create_run(first, sweep=record, at=at)
    with refusing(run.path):
        write_after(run)
    if index is not None:
        index.add(run)
    return SweepFolder(run)


def advance(
    sweep: SweepFolder,
    scheduler_of: Callable[[RunFolder], Scheduler],
    index: Index | None = None,
    *,
    pause_s: float = RETRY_S,
    part: int = 0,
) -> SweepProgress | None:
    """Submit what is left of a sweep, as drivers do; None where that is not possible. Never raises a UserError.

    `pause_s`: how long to leave it alone after a refusal that passes by itself. `part`: as for `submit_points`.
    """
    if os.path.exists(sweep.submitted) or os.path.exists(sweep.cancel) or sweep.run.is_foreign:
        return None
    with suppress(OSError):
        reason = read_text(sweep.refused, errors="replace")
        if not was_refused(reason, for_now=True) or time.time() - sweep.refused.stat().st_mtime < pause_s:
            return None
    try:
        return submit_points(sweep, scheduler_of(sweep.run), index=index, part=part)
    except UserError:
        return None


def submit_points(
    sweep: SweepFolder,
    scheduler: Scheduler,
    *,
    prepared: PreparedSweep | None = None,
    index: Index | None = None,
    lookup_s: float = LOOKUP_S,
    wait: Wait | None = None,
    clock: Callable[[], float] = time.time,
    part: int = 0,
) -> SweepProgress:
    """Submit the points that have no job yet, as far as the limits allow. Any number of processes may call this.

    `part`: submit none until there is room for one `part`-th of the jobs in the queue, or for all points that are left.

    Raises what `submit_array` raises where nothing could be submitted.
    """
    with one_submitter(sweep) as ours:
        if not ours:
            return SweepProgress((), len(unsubmitted(sweep)), BUSY)
        waiting = settle_arrays(sweep, scheduler, clock)
        left = unsubmitted(sweep) if prepared is None else [point.number for point in prepared.points]
        if waiting is not None or not left:
            return SweepProgress((), _count_left(sweep), waiting)
        refuse_cancelled(sweep)
        return _submit(Sending(sweep, scheduler, index, lookup_s, wait), left, prepared, part)


def _submit(sending: Sending, left: Sequence[int], prepared: PreparedSweep | None, part: int) -> SweepProgress:
    """Submit as many of these points as the limits allow. Raises as `submit_points`."""
    sweep = sending.sweep
    ready = recorded_points(sweep, left[:1]) if prepared is None else prepared
    room = room_for(sweep, sending.scheduler, ready.first)
    now = left[: room.points]
    few = part and room.queued is not None and len(now) * part < min(room.queued, len(left) * part)
    if not now or few:
        return SweepProgress((), len(left), room.why_left, queued=room.queued)
    if prepared is None:
        ready = recorded_points(sweep, now)
    attempts = _attempts(sweep, ready, now)
    job_ids, why = send_points(sending, room, attempts, must=len(left) == len(sweep.record.points))
    still = _count_left(sweep)
    return SweepProgress(tuple(job_ids), still, (why or room.why_left) if still else None, queued=room.queued)


def _count_left(sweep: SweepFolder) -> int:
    """How many points have no job. Where each has one, that is put on record, so that nobody looks again."""
    left = len(unsubmitted(sweep))
    if not left and is_settled(sweep):
        with suppress(OSError):
            write_atomic(sweep.submitted, "")
    return left


def _active_points(sweep: SweepFolder, scheduler: Scheduler) -> int:
    """The number of points whose last attempt has not ended."""
    ids = set()
    for run in sweep.runs():
        for attempt in run.attempts()[-1:]:
            files = Reader().read(attempt)
            if files.job_id is not None and files.final is None and files.void is None:
                ids.add(files.job_id)
    records = scheduler.query(ids) if ids else {}
    return sum(one not in records or records[one].state not in ENDED_STATES for one in ids)


def _attempts(sweep: SweepFolder, ready: PreparedSweep, numbers: Iterable[int]) -> dict[int, PointAttempt]:
    """The next attempts of points without a job."""
    record = sweep.record
    common = prepare(ready.first, record.sets, exclude=(), job_file=record.job_file)
    recorded = {"job_folder": common.plan.job_folder, "job_file": common.plan.job_file}
    known: dict[int, PreparedAttempt] = {}
    attempts = {}
    for number in numbers:
        point, sets = ready.jobs[number], (*record.sets, *ready.jobs[number].sets)
        if (prepared := known.get(id(point.job))) is None:
            prepared = replace(
                common,
                script=point.job.script,
                plan=plan_record(point.job.plan, sets=sets, excluded=(), readmitted=(), **recorded),
                overrides=structs.replace(common.overrides, set=sets),
            )
            prepared = prepared if sweep.run.pipeline is None else with_sentinel(prepared, point.job.plan)
            known[id(point.job)] = prepared
        last = next((one.number for one in reversed(sweep.point(number).attempts())), 0)
        attempts[number] = PointAttempt(last + 1, prepared, point.job.plan, point.values)
    return attempts
