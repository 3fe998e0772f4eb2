"""Submit a job array of a sweep exactly once, with the protocol of an attempt (submitting/submit_attempt.py).

The order: array claimed, with its intent → attempts of its points, each with the array's token and its task →
sbatch → job.json of the array, which stands for those of its points. After a crash at any point, `settle_arrays` finds
the array by its token or abandons it. Each task trains only if it creates the claim of its attempt, as any job does.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from msgspec import Struct, structs

from hpc_launch.base.errors import SubmitRefused, UsageError
from hpc_launch.base.files import synced_together, write_atomic
from hpc_launch.base.json_records import read_record, write_record
from hpc_launch.runs.groups.sweep_folder import SweepFolder, tasks_of
from hpc_launch.runs.layout import FOLDER_MODE, AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.run_info import Journal, process_fields, this_process
from hpc_launch.runs.records.submission import (
    NEVER_SUBMITTED,
    Intent,
    abandon,
    array_of,
    never_submitted,
    new_token,
    read_claim,
    write_job,
)
from hpc_launch.runs.run_index import Index
from hpc_launch.runs.submitting.reconcile import reconcile
from hpc_launch.runs.submitting.run_store import PreparedAttempt, checkpoint, refusing, write_attempt, write_programs
from hpc_launch.runs.submitting.submit_attempt import (
    LOOKUP_S,
    AttemptTask,
    Wait,
    check_ours,
    check_wanted,
    send_job,
    submit_sentinel,
)
from hpc_launch.schedulers.scheduler import Scheduler, Submission


def create_point(sweep: SweepFolder, number: int) -> RunFolder:
    """The run folder of a point, made complete where it is not. Raises OSError."""
    run, home = sweep.point(number), sweep.run
    if run.exists:
        return run
    run.path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    with suppress(FileExistsError):
        try:
            os.link(home.after, run.after)
        except PermissionError:  # a file system without hard links
            shutil.copy2(home.after, run.after)
    for name in (home.hooks.name, home.code.name):
        if os.path.isdir(home.path / name):
            with suppress(FileExistsError):
                os.symlink(f"../{name}", run.path / name)
    run.attempts_folder.mkdir(mode=FOLDER_MODE, exist_ok=True)  # last: it completes the run
    return run


def begin_attempt(
    run: RunFolder,
    prepared: PreparedAttempt,
    array: AttemptFolder,
    intent: Intent,
    task: int,
    *,
    follows: int | None = None,
) -> bool:
    """Claim the next attempt of a point for a task of a job array, and write it. Raises OSError.

    False where another process has claimed it, or where the point has an attempt that was or may be submitted, other
    than the one that this attempt `follows`. The array's link comes first, so that whoever abandons the array finds the
    attempt.
    """
    attempts = run.attempts()
    if attempts and attempts[-1].number != follows and (follows is not None or not was_never_submitted(attempts[-1])):
        return False
    attempt = run.attempt(attempts[-1].number + 1 if attempts else 1)
    link = array.path / str(task)
    os.symlink(os.path.relpath(attempt.path, array.path), link)
    try:
        attempt.path.mkdir(mode=FOLDER_MODE)
    except FileExistsError:
        link.unlink()
        return False
    write_record(attempt.intent, structs.replace(intent, task=task, overrides=prepared.overrides))
    write_attempt(attempt, prepared)
    # slurmd would create it by the umask, and a line of a teammate could pass for one of Slurm's.
    os.close(os.open(attempt.batch_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    return True


def was_never_submitted(attempt: AttemptFolder) -> bool:
    """Whether no job was or will be submitted for an attempt."""
    claim = read_claim(attempt)
    return claim is not None and never_submitted(claim.void)


def unsubmitted(sweep: SweepFolder) -> list[int]:
    """The points without a job: those without an attempt, and those whose last one was never submitted."""
    left = []
    for point in sweep.record.points:
        attempts = sweep.point(point.number).attempts()
        if not attempts or was_never_submitted(attempts[-1]):
            left.append(point.number)
    return left


def is_settled(sweep: SweepFolder, number: int) -> bool:
    """Whether the last attempt of a point has a job, or never will."""
    attempts = sweep.point(number).attempts()
    if not attempts:
        return False
    files = Reader().read(attempts[-1])
    return files.job_id is not None or (files.void is not None and not never_submitted(files.void))


def refused_text(reason: str) -> str:
    """The claim of an attempt whose array was refused or abandoned: the point waits for the next array."""
    return reason if reason.startswith(NEVER_SUBMITTED) else f"{NEVER_SUBMITTED}: {reason}"


class ArrayChunk(Struct, frozen=True):
    """One job array: tasks by number, each with its point."""

    script: str
    tasks: Mapping[int, int]

    def spec(self, at_once: int | None) -> str:
        """The value of `sbatch --array`: `0-3,7%2`."""
        ranges = []
        numbers = sorted(self.tasks)
        for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
            block = [number for _, number in group]
            ranges.append(str(block[0]) if len(block) == 1 else f"{block[0]}-{block[-1]}")
        return ",".join(ranges) + (f"%{at_once}" if at_once is not None and at_once < len(numbers) else "")


def chunks(scripts: Mapping[int, str], max_array_size: int) -> list[ArrayChunk]:
    """As few arrays as possible: of at most `max_array_size` tasks, which all have one array script.

    A task has the number of its point where Slurm allows that number: task numbers end below MaxArraySize.
    """
    by_script: dict[str, list[int]] = {}
    for point, script in scripts.items():
        by_script.setdefault(script, []).append(point)
    result = []
    for script, points in by_script.items():
        for begin in range(0, len(points), max_array_size):
            result.append(ArrayChunk(script, _numbered(points[begin : begin + max_array_size], max_array_size)))
    return result


def _numbered(points: Sequence[int], max_array_size: int) -> dict[int, int]:
    if max(points) < max_array_size:
        return {point: point for point in points}
    return dict(enumerate(points))


STEPS = ("array claimed", "points", "array ready", "array submitted", "array job")
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
    chunk: ArrayChunk,
    points: Mapping[int, PreparedAttempt],
    options: tuple[str, ...],
    at_once: int | None,
    *,
    follows: Mapping[int, int] | None = None,
) -> str | None:
    """Submit one array; None where another process has taken its points.

    `follows`: the last attempts of its points, which are over; without it, the points have no job yet.

    Raises:
        Refused: Its files cannot be written; nothing was submitted.
        SubmitRefused: Slurm refused it; its points wait for the next array.
        SubmitUnknown: No answer within `lookup_s` seconds.
        UsageError: Another process is submitting the sweep, or it was cancelled.
    """
    sweep, scheduler = sending.sweep, sending.scheduler
    journal = Journal(sweep.run)
    first = next(iter(points.values()))
    with refusing(sweep.run.path):
        array, intent = _claim(sweep, first.name, options)
        name = intent.job_name or ""
        checkpoint("array claimed")
        write_programs(sweep.run)
        with synced_together():
            tasks = _write_points(sweep, chunk, points, array, intent, follows)
        checkpoint("points")
        if not tasks:
            abandon(array, "its points are in another array")
            return None
        write_atomic(array.script, chunk.script, mode=0o755)
        journal.write("intent", attempt=array.number, job_name=name)
    checkpoint("array ready")
    task = AttemptTask(sweep.run, array, first, scheduler, journal, sending.lookup_s, sending.wait)
    check_ours(task)
    refuse_cancelled(sweep)
    submission = Submission(
        script=chunk.script,
        folder=array.path,
        job_name=name,
        options=options,
        environment=first.secrets,
        array=ArrayChunk(chunk.script, tasks).spec(at_once),
    )
    cluster = scheduler.cluster()  # the controller may not answer after sbatch, and a job that it forgot needs the name
    submitted = time.time()
    try:
        job_id = array_of(send_job(task, submission))
    except SubmitRefused as error:
        _release(array, f"refused: {error}")
        raise
    checkpoint("array submitted")
    cluster = cluster or scheduler.cluster()
    with suppress(OSError):
        write_job(array, job_id, submitted, cluster)
    journal.note("submitted", attempt=array.number, job_id=job_id)
    checkpoint("array job")
    check_wanted(task, job_id)
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
        if os.path.exists(array.job) or os.path.exists(array.path / _RELEASED):
            continue
        outcome = reconcile(sweep.run, array, scheduler, clock)
        if outcome.kind == "void":
            _release(array, outcome.reason or "abandoned")
        elif outcome.kind == "waiting":
            waiting = outcome.reason
    return waiting


def refuse_cancelled(sweep: SweepFolder) -> None:
    """Raise UsageError for a sweep that a user has cancelled."""
    if os.path.exists(sweep.cancel):
        raise UsageError(f"{sweep.name} was cancelled", f"hpc-launch resubmit {sweep.name} submits its points again")


def array_jobs(sweep: SweepFolder) -> dict[str, AttemptFolder]:
    """The arrays of a sweep by their job ids."""
    files = [Reader().read(array) for array in sweep.arrays()]
    return {array_of(one.job_id): one.attempt for one in files if one.job_id is not None}


def _claim(sweep: SweepFolder, name: str, options: tuple[str, ...]) -> tuple[AttemptFolder, Intent]:
    """Create the folder of the next array with its intent in it: whoever finds it knows its owner and its token.

    Raises UsageError where another process has created it, and OSError.
    """
    arrays = sweep.arrays()
    array = sweep.array(arrays[-1].number + 1 if arrays else 1)
    token = new_token()
    intent = Intent(
        token=token,
        job_name=f"{name}.{token}.{array.number}",
        time=time.time(),
        options=options,
        **process_fields(this_process()),
    )
    draft = AttemptFolder(sweep.run.arrays / f".{token}")
    draft.path.mkdir(mode=FOLDER_MODE)
    write_record(draft.intent, intent)
    try:
        os.rename(draft.path, array.path)  # fails where there is a folder that is not empty (rename(2))
    except OSError as error:
        shutil.rmtree(draft.path, ignore_errors=True)
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        raise UsageError(f"another process is submitting {sweep.name}", f"hpc-launch status {sweep.name}") from None
    return array, intent


def _write_points(  # noqa: PLR0917 - the stages before
    sweep: SweepFolder,
    chunk: ArrayChunk,
    points: Mapping[int, PreparedAttempt],
    array: AttemptFolder,
    intent: Intent,
    follows: Mapping[int, int] | None,
) -> dict[int, int]:
    """Write the attempts of an array; returns its tasks. Raises OSError."""
    tasks = {}
    for task, number in chunk.tasks.items():
        run = create_point(sweep, number)
        last = None if follows is None else follows[number]
        if begin_attempt(run, points[number], array, intent, task, follows=last):
            tasks[task] = number
            run.note_attempt()
    return tasks


def _own_tasks(array: AttemptFolder) -> Iterator[tuple[int, AttemptFolder]]:
    """The attempts that the array's driver claimed for it, which may have ended between the link and the attempt."""
    own = read_record(array.intent, Intent)
    for task, attempt in tasks_of(array):
        intent = read_record(attempt.intent, Intent)
        mine = intent is None or (own is not None and intent.job_name == own.job_name)
        if mine and os.path.isdir(attempt.path):
            yield task, attempt


def _release(array: AttemptFolder, reason: str) -> None:
    """Abandon the attempts of an array that no job belongs to, so that another array can take their points."""
    with suppress(OSError), synced_together():
        for _, attempt in _own_tasks(array):
            abandon(attempt, refused_text(reason))
        write_atomic(array.path / _RELEASED, "")
