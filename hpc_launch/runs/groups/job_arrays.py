"""The job arrays of a sweep: submit one exactly once, with the protocol of an attempt (submit_attempt.py), and cancel.

The order: array claimed, with its intent and its tasks → sbatch → job.json of the array, which stands for those of its
points. Of two arrays with the same point, the later one leaves it out. After a crash at any step, `settle_arrays` finds
the array by its token or abandons it. Each task trains only if it creates the claim of its attempt, as any job does.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hpc_launch.base.errors import SchedulerError, SubmitRefused, Unreachable, UsageError
from hpc_launch.base.files import user, write_atomic
from hpc_launch.base.json_records import write_record
from hpc_launch.job.hostlist import compress
from hpc_launch.runs.groups.array_tasks import (
    PointAttempt,
    attempt_of,
    begin_attempt,
    begun,
    in_arrays,
    is_own,
    tasks_of,
    write_tasks,
    write_templates,
)
from hpc_launch.runs.groups.group_folder import SweepFolder
from hpc_launch.runs.layout import FOLDER_MODE, AttemptFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.run_info import Journal, refuse_other_users_run
from hpc_launch.runs.records.submission import (
    CANCELLED,
    NEVER_SUBMITTED,
    Overrides,
    abandon,
    array_of,
    never_submitted,
    new_intent,
    read_claim,
)
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.cancel_run import cancel_run
from hpc_launch.runs.submitting.reconcile import reconcile, still_has_id
from hpc_launch.runs.submitting.run_store import checkpoint, refusing, write_programs
from hpc_launch.runs.submitting.submit_attempt import (
    LOOKUP_S,
    AttemptTask,
    Wait,
    check_ours,
    send_and_record,
    submit_sentinel,
)
from hpc_launch.schedulers.scheduler import Scheduler, Submission


def was_never_submitted(attempt: AttemptFolder) -> bool:
    """Whether no job was or will be submitted for an attempt."""
    claim = read_claim(attempt)
    return claim is not None and never_submitted(claim.void)


def unsubmitted(sweep: SweepFolder) -> list[int]:
    """The points without a job: those that no array has, and those whose last attempt was never submitted."""
    found, left = in_arrays(sweep), []
    for point in sweep.record.points:
        attempts = sweep.point(point.number).attempts()
        last = attempts[-1].number if attempts and was_never_submitted(attempts[-1]) else 0
        if found.get(point.number, 0) <= last and (last or not attempts):
            left.append(point.number)
    return left


def is_settled(sweep: SweepFolder) -> bool:
    """Whether each point has a job or never will, and nothing is being submitted."""
    if unsubmitted(sweep) or not all(_has_outcome(array) for array in sweep.arrays()):
        return False
    attempts = [attempts[-1] for run in sweep.runs() if (attempts := run.attempts())]
    files = map(Reader().read, attempts)
    return all(one.job_id is not None or (one.void and not never_submitted(one.void)) for one in files)


def array_spec(tasks: Iterable[int], at_once: int | None) -> str:
    """The value of `sbatch --array`: `0-3,7%2`."""
    numbers = list(map(str, tasks))
    ranges = compress(numbers).strip("[]")
    return ranges + (f"%{at_once}" if at_once is not None and at_once < len(numbers) else "")


def chunks(points: Sequence[int], max_array_size: int) -> list[dict[int, int]]:
    """The points of as few arrays as possible, by task: each of at most `max_array_size` tasks.

    A task has the number of its point where Slurm allows that number: task numbers end below MaxArraySize.
    """
    parts = [points[begin : begin + max_array_size] for begin in range(0, len(points), max_array_size)]
    return [dict(zip(part, part, strict=True) if max(part) < max_array_size else enumerate(part)) for part in parts]


STEPS = ("array claimed", "array submitted", "array job")
"""The names of the steps, in order (`checkpoint` in run_store.py)."""

_RELEASED = "released"
"""The file of an array without a job, once the attempts of its points are abandoned."""


@dataclass(frozen=True)
class Sending:
    """Where points are submitted, and how long a missing answer is waited for."""

    sweep: SweepFolder
    scheduler: Scheduler
    index: Index | None = None
    lookup_s: float = LOOKUP_S
    wait: Wait | None = None


def submit_array(
    sending: Sending,
    script: str,
    tasks: Mapping[int, int],
    points: Mapping[int, PointAttempt],
    *,
    options: tuple[str, ...],
    at_once: int | None,
) -> str | None:
    """Submit one array of the attempts of these points, by task; None where another process has taken them.

    Raises:
        Refused: Its files cannot be written; nothing was submitted.
        SubmitRefused: Slurm refused it; its points wait for the next array.
        SubmitUnknown: No answer within `lookup_s` seconds.
        UsageError: Another process is submitting the sweep, or it was cancelled.
    """
    sweep, scheduler = sending.sweep, sending.scheduler
    journal = Journal(sweep.run)
    first = points[next(iter(tasks.values()))].prepared
    with refusing(sweep.run.path):
        write_programs(sweep.run)
        array, name = _claim(sweep, script, tasks, points, options)
        checkpoint("array claimed")
        own = _own_tasks(sweep, array)
        if not own:
            abandon(array, "its points are in another array")
            return None
        journal.write("intent", attempt=array.number, job_name=name)
    task = AttemptTask(sweep.run, array, first, scheduler, journal, sending.lookup_s, sending.wait)
    check_ours(task)
    refuse_cancelled(sweep)
    submission = Submission(
        script=script,
        folder=array.path,
        job_name=name,
        options=options,
        environment=first.secrets,
        array=array_spec(own, at_once),
    )
    try:
        job_id = send_and_record(task, submission, "array submitted", "array job")
    except SubmitRefused as error:
        _release(sweep, array, f"{error.how}: {error}")
        raise
    if os.path.exists(sweep.cancel):
        scheduler.cancel(job_id)
        refuse_cancelled(sweep)
    submit_sentinel(task, submission, job_id)
    if sending.index is not None:
        sending.index.add(sweep.run, job_id)
    return job_id


def settle_arrays(sweep: SweepFolder, scheduler: Scheduler, clock: Callable[[], float] = time.time) -> str | None:
    """Settle what other processes left of the sweep's arrays. The reason where one is still being submitted."""
    waiting = None
    for array in sweep.arrays():
        if _has_outcome(array):
            continue
        waiting = reconcile(sweep.run, array, scheduler, clock) or waiting
        claim = read_claim(array)
        if claim is not None and claim.void is not None:
            _release(sweep, array, claim.void)
    return waiting


def refuse_cancelled(sweep: SweepFolder) -> None:
    """Raise UsageError for a sweep that a user has cancelled."""
    if os.path.exists(sweep.cancel):
        raise UsageError(f"{sweep.name} was cancelled", f"hpc-launch resubmit {sweep.name} submits its points again")


def array_jobs(sweep: SweepFolder) -> dict[str, AttemptFolder]:
    """The arrays of a sweep by their job ids."""
    files = [Reader().read(array) for array in sweep.arrays()]
    return {array_of(one.job_id): one.attempt for one in files if one.job_id is not None}


def _has_outcome(array: AttemptFolder) -> bool:
    return os.path.exists(array.job) or os.path.exists(array.path / _RELEASED)


def _claim(
    sweep: SweepFolder,
    script: str,
    tasks: Mapping[int, int],
    points: Mapping[int, PointAttempt],
    options: tuple[str, ...],
) -> tuple[AttemptFolder, str]:
    """Create the folder of the next array with all that its tasks need, and the name of its job.

    Whoever finds it knows its owner, its token and its points. Raises UsageError where another process has created it,
    and OSError.
    """
    arrays = sweep.arrays()
    array = sweep.array(arrays[-1].number + 1 if arrays else 1)
    intent = new_intent(points[next(iter(tasks.values()))].prepared.name, array.number, options, Overrides())
    draft = AttemptFolder(sweep.run.arrays / f".{intent.token}")
    draft.path.mkdir(mode=FOLDER_MODE)
    write_templates(draft, tasks, points, intent)
    write_atomic(draft.script, script, mode=0o755, sync=False)
    write_record(draft.intent, intent)
    try:
        os.rename(draft.path, array.path)  # fails where there is a folder that is not empty (rename(2))
    except OSError as error:
        shutil.rmtree(draft.path, ignore_errors=True)
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        raise UsageError(f"another process is submitting {sweep.name}", f"hpc-launch status {sweep.name}") from None
    sweep.run.note_attempt()
    return array, intent.job_name or ""


def _own_tasks(sweep: SweepFolder, array: AttemptFolder) -> dict[int, int]:
    """The points of an array by task, without those that another array or another driver has. Raises OSError.

    A first attempt can wait for its task. The next one of a point that is over is written now: other drivers may begin
    it, too.
    """
    others, tasks = in_arrays(sweep, before=array), tasks_of(array)
    own = [one for one in tasks if others.get(one.point, 0) < one.attempt]
    own = [one for one in own if one.attempt == 1 or begin_attempt(sweep, array, one)]
    if len(own) < len(tasks):
        write_tasks(array, own)
    return {one.task: one.point for one in own}


def _release(sweep: SweepFolder, array: AttemptFolder, reason: str) -> None:
    """Abandon the attempts of an array that no job belongs to, so that another array can take their points."""
    words = reason if reason.startswith(NEVER_SUBMITTED) else f"{NEVER_SUBMITTED}: {reason}"
    with suppress(OSError):
        for attempt in (attempt_of(sweep, task) for task in tasks_of(array)):
            if is_own(array, attempt):
                abandon(attempt, words)
        write_atomic(array.path / _RELEASED, "")


def cancel_sweep(sweep: SweepFolder, scheduler: Scheduler) -> list[str]:
    """Cancel the points of a sweep, and return the ids of the arrays and jobs.

    Raises:
        UsageError: The sweep belongs to another user.
        Unreachable: A job that may be running could not be cancelled. The requests stay on record, as for a run.
    """
    sweep.ask_to_cancel()
    by, reader = user(), Reader()
    settle_arrays(sweep, scheduler)
    runs = begun(sweep)
    cancelled: list[str] = []
    unreached: SchedulerError | None = None
    for array in sweep.arrays():
        files = reader.read(array)
        if files.job is None or files.job.job_id is None:
            with suppress(OSError):
                abandon(array, f"{CANCELLED} by {by}")
            continue
        job_id, name = array_of(files.job.job_id), files.intent.job_name if files.intent else None
        if all(_is_over(reader.read(attempt_of(sweep, task))) for task in tasks_of(array)):
            continue
        try:
            if still_has_id(job_id, name, scheduler):
                scheduler.cancel(job_id)
                cancelled.append(job_id)
        except SchedulerError as error:
            unreached = error
    arrays = frozenset(cancelled)
    for run in runs:
        point = reader.read(run.attempts()[-1])
        final, end = point.final, point.own_end
        ended_well = final.state == "COMPLETED" if final is not None else end is not None and end.exit_code == 0
        if point.void is not None or ended_well:
            continue
        # A verdict on an attempt that is over may still ask for the next one.
        try:
            cancelled += cancel_run(run, scheduler, undecided=_is_over(point), by=by, arrays=arrays)
        except SchedulerError as error:
            unreached = error
    if unreached is not None:
        raise Unreachable(str(unreached), unreached.hint)
    return list(dict.fromkeys(cancelled))


def reopen_sweep(sweep: SweepFolder) -> None:
    """Forget that a sweep was cancelled, before its points are submitted again. Raises OSError."""
    refuse_other_users_run(sweep.run)
    with suppress(FileNotFoundError):
        os.unlink(sweep.cancel)
        os.utime(sweep.run.arrays)  # its final state may be kept


def _is_over(files: AttemptFiles) -> bool:
    return files.final is not None or files.end is not None or files.void is not None
