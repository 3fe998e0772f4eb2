"""Write the points of a sweep to disk: each is a run, which shares with the sweep what is the same for all."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress

from msgspec import structs

from hpc_launch.base.json_records import write_record
from hpc_launch.runs.layout import FOLDER_MODE, AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.records.submission import NEVER_SUBMITTED, Intent, never_submitted, read_claim
from hpc_launch.runs.submitting.run_store import PreparedAttempt, write_attempt, write_info
from hpc_launch.runs.sweeps.sweep_folder import SweepFolder


def create_point(sweep: SweepFolder, number: int, prepared: PreparedAttempt) -> RunFolder:
    """The run folder of a point, made complete where it is not. Raises OSError."""
    run, home = sweep.point(number), sweep.run
    if run.exists:
        return run
    for folder in (run.path, run.attempts_folder):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    with suppress(FileExistsError):
        try:
            os.link(home.after, run.after)
        except PermissionError:  # a file system without hard links
            shutil.copy2(home.after, run.after)
    for name in (home.hooks.name, home.code.name):
        if os.path.isdir(home.path / name):
            with suppress(FileExistsError):
                os.symlink(f"../{name}", run.path / name)
    write_info(run, prepared, time.time())
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
    if os.path.exists(attempts[-1].job):
        return True
    files = Reader().read(attempts[-1])
    return files.job_id is not None or (files.void is not None and not never_submitted(files.void))


def refused_text(reason: str) -> str:
    """The claim of an attempt whose array was refused or abandoned: the point waits for the next array."""
    return reason if reason.startswith(NEVER_SUBMITTED) else f"{NEVER_SUBMITTED}: {reason}"
