"""`scheduler: spool`: a folder as a queue on this machine, in which one job runs after the other.

Each job has a folder there, by its number, with its `name`, a line of `state` for each change, and a `lock` that its
queue.sh holds.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from hpc_launch.plugins.api import (
    API,
    JobRecord,
    Limit,
    NotWritten,
    QueueLimits,
    Scheduler,
    SchedulerDescriptor,
    Submission,
    SubmitRefused,
    Unreachable,
    state_folder,
)

QUEUE = Path(__file__).with_name("queue.sh")


class SpoolScheduler(Scheduler):
    """The spool folder of this user."""

    takes = frozenset({"begin"})

    def __init__(self) -> None:
        self._folder = state_folder() / "spool"

    def submit(self, submission: Submission) -> str:
        try:
            submission.write_script()
            job, lock = self._new_job(submission.job_name)
        except (OSError, UnicodeError) as error:
            raise NotWritten(f"cannot prepare the job: {error}") from error
        delay = next((one.partition("+")[2] for one in submission.options if one.startswith("--begin=now+")), "0")
        times = (int(value or 0) for value in (delay, submission.time_limit_s, submission.signal_before_s))
        command = ["setsid", "--fork", "bash", *map(str, (QUEUE, job, submission.folder.absolute(), *times))]
        environment = submission.job_environment(f"spool-{job.name}")
        quiet = subprocess.DEVNULL
        with lock:
            try:
                subprocess.run(command, env=environment, stdin=lock, stdout=quiet, stderr=quiet, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise SubmitRefused(f"cannot start queue.sh: {error}", "install util-linux, with setsid") from error
        return f"spool-{job.name}"

    def find(self, job_name: str) -> list[JobRecord]:
        return [record for record in map(_record, self._jobs()) if record is not None and record.name == job_name]

    def query(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        del fresh  # files can always be read
        records = (_record(self._of(job_id)) for job_id in job_ids)
        return {record.job_id: record for record in records if record is not None}

    def cancel(self, job_id: str) -> None:
        self._ask(job_id, "cancel")

    def warn(self, job_id: str, *, preempt: bool = False) -> None:
        if preempt:
            raise Unreachable(f"cannot preempt {job_id}", "nothing preempts a job of the spool folder")
        self._ask(job_id, "warn")

    def limits(self, account: str | None, partition: str | None, qos: str | None) -> QueueLimits:
        del account, partition, qos  # there are none
        living = sum(record is not None and not record.ended_for_good for record in map(_record, self._jobs()))
        return QueueLimits((Limit("the spool folder", "one at a time", "user", "jobs", 1, used=living),))

    def _new_job(self, name: str) -> tuple[Path, BinaryIO]:
        """A job's folder and its lock, held: no later job finds it without one."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / "submitting").open("w") as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            job = self._folder / str(max((int(job.name) for job in self._jobs()), default=0) + 1)
            job.mkdir()
            (job / "name").write_text(name, "utf-8")
            lock = (job / "lock").open("wb")
            fcntl.flock(lock, fcntl.LOCK_EX)
        return job, lock

    def _jobs(self) -> Iterator[Path]:
        try:
            yield from (job for job in self._folder.iterdir() if job.name.isdecimal())
        except FileNotFoundError:
            return

    def _of(self, job_id: str) -> Path:
        return self._folder / (job_id.removeprefix("spool-") if job_id.startswith("spool-") else "none")

    def _ask(self, job_id: str, what: str) -> None:
        try:
            (self._of(job_id) / what).touch()
        except FileNotFoundError:
            return  # a job of which nothing is known has ended
        except OSError as error:
            raise Unreachable(f"cannot {what} {job_id}: {error}") from error


def _record(job: Path) -> JobRecord | None:
    """The record of a job; None where there is none."""
    alive = _is_locked(job / "lock")  # before its state: what it noted last counts
    try:
        name, submitted = (job / "name").read_text("utf-8"), (job / "name").stat().st_mtime
        lines = (job / "state").read_text("utf-8").split("\n") if (job / "state").exists() else []
    except OSError:
        return None
    rows = [line.split() for line in lines if line]
    times = {row[0]: float(row[1]) for row in rows}
    state, reason, now = rows[-1][0] if rows else "PENDING", None, time.time()
    if state in {"PENDING", "RUNNING"} and not alive:
        state, reason = "NODE_FAIL", "its queue.sh was killed, or the machine rebooted"
    ended = times.get(state, max(times.values(), default=submitted)) if state not in {"PENDING", "RUNNING"} else None
    return JobRecord(
        job_id=f"spool-{job.name}",
        state=state,
        source="scheduler",
        as_of=now,
        name=name,
        reason=reason,
        exit_code=int(rows[-1][2]) if rows and len(rows[-1]) > 2 else None,
        nodes=os.uname().nodename if "RUNNING" in times else None,
        submitted=submitted,
        started=times.get("RUNNING"),
        ended=ended,
        restarts=0,
    )


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


DESCRIPTOR = SchedulerDescriptor(name="spool", api=API, open=SpoolScheduler)
