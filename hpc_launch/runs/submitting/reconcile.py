"""Settle a submission that left no job id because its driver was killed, frozen, or got no answer.

Every decision made here is final, because it goes through `claim`: an attempt is abandoned only by creating that file,
and a job trains only if it created it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from hpc_launch.base.errors import SchedulerError, Unreachable
from hpc_launch.runs.layout import FOLDER_MODE, AttemptFolder, RunFolder
from hpc_launch.runs.records.attempt_files import AttemptFiles, Reader
from hpc_launch.runs.records.run_info import Journal, ProcessRecord, certainly_gone, read_journals
from hpc_launch.runs.records.submission import NEVER_SUBMITTED, Claim, abandon, write_job
from hpc_launch.schedulers.scheduler import JobRecord, Scheduler

GRACE_S = 20.0
"""How long after the intent an sbatch may still be running although its driver is gone."""

NOT_YET = "the sweep has not submitted it yet"
"""Why a point has no attempt."""

GIVE_UP_S = 600.0
"""Age at which an unfinished submission is abandoned, wherever its driver may be."""


def reconcile(
    run: RunFolder,
    attempt: AttemptFolder,
    scheduler: Scheduler,
    clock: Callable[[], float],
) -> str | None:
    """Settle an attempt without a job id as far as possible now: it gets `job.json` or `claim`.

    Returns why that is not possible yet: its submitter may still be at work, or the scheduler or the file system does
    not answer. Never raises.
    """
    files = Reader().read(attempt)
    if files.void is not None:
        return None
    if files.job_id is not None:
        if files.job is None:
            # The job is running: it claimed the attempt before its driver could record the id.
            with suppress(OSError):
                write_job(attempt, files.job_id, (files.intent.time if files.intent else None) or time.time())
        return None
    journal = Journal(run)
    owner, since = _owner(run, files)
    age = clock() - since
    if files.intent is not None:
        try:
            jobs = real_jobs(scheduler.find(files.intent.job_name or ""))
        except SchedulerError as error:
            return f"{_who(owner, age)}; the scheduler does not answer: {error}"
        if jobs:
            job_id = files.intent.job_of(pick(jobs).job_id)
            adopt(attempt, job_id, since, journal, scheduler.cluster())
            return None
    late = age >= GRACE_S
    over = owner is not None and (
        (certainly_gone(owner) and (late or files.intent is None)) or (late and _job_over(owner, scheduler))
    )
    if not over and age < GIVE_UP_S:
        return _who(owner, age)
    return _void(attempt, journal, _who(owner, age))


def real_jobs(records: Iterable[JobRecord]) -> list[JobRecord]:
    """Records of actual jobs: Slurm also records a refused submission as a job that failed at once."""
    return [record for record in records if not _refused(record)]


def still_has_id(job_id: str, job_name: str | None, scheduler: Scheduler) -> bool:
    """Whether no other job has the id, on a cluster set up again or one with the same storage. Raises Unreachable."""
    record = scheduler.query([job_id], fresh=True).get(job_id)
    return record is None or record.name in (None, job_name)


def jobs_to_cancel(job_id: str | None, job_name: str | None, scheduler: Scheduler) -> list[str]:
    """The job with this id, unless another one has it now; all live jobs of the name where no id is known.

    Raises Unreachable.
    """
    if job_id is not None:
        return [job_id] if job_name is None or still_has_id(job_id, job_name, scheduler) else []
    jobs = real_jobs(scheduler.find(job_name)) if job_name else []
    return [job.job_id for job in jobs if not job.ended_for_good]


def pick(jobs: list[JobRecord]) -> JobRecord:
    """The job that counts where a frozen driver submitted two: the lowest id. The other one exits at the claim."""
    return min(jobs, key=lambda job: [int(number) for number in re.findall(r"\d{1,18}", job.job_id)])


def look_up(
    scheduler: Scheduler, job_name: str, lookup_s: float, while_away: Callable[[Unreachable], None] | None = None
) -> str | None:
    """Search for the job of this name with growing pauses, while the controller may be down.

    None after `lookup_s` seconds. With `while_away`, which is called after each query without an answer, these seconds
    begin once the controller answers.
    """
    until = time.monotonic() + lookup_s
    pause = 0.5
    while True:
        try:
            jobs = real_jobs(scheduler.find(job_name))
        except Unreachable as error:
            if while_away is not None:
                while_away(error)
                until = time.monotonic() + lookup_s
        else:
            if jobs:
                return pick(jobs).job_id
        if time.monotonic() + pause > until:
            return None
        time.sleep(pause)
        pause = min(pause * 2, 5.0)


def adopt(attempt: AttemptFolder, job_id: str, submitted: float, journal: Journal, cluster: str | None = None) -> str:
    """Record the job that was found. Returns the attempt's job, which another process may have recorded first."""
    with suppress(OSError):
        # On a full disk the next driver finds the job in the same way.
        if write_job(attempt, job_id, submitted, cluster):
            journal.note("adopted", attempt=attempt.number, job_id=job_id)
    return Reader().read(attempt).job_id or job_id


def no_attempt(run: RunFolder, creator: ProcessRecord | None, since: float, now: float) -> str | None:
    """Settle a run folder without any attempt. Returns why that is not possible yet.

    Its first attempt is created and abandoned here, so that a driver that was only frozen finds it taken.
    """
    if run.sweep is not None or os.path.exists(run.sweep_info):
        return NOT_YET
    if os.path.exists(run.stage_info):
        return "the pipeline has not submitted it yet"
    who = _who(creator, now - since)
    if not (creator is not None and certainly_gone(creator)) and now - since < GIVE_UP_S:
        return who
    attempt = run.attempt(1)
    try:
        # Without `parents`: a run folder that was deleted stays deleted.
        run.attempts_folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        attempt.path.mkdir(mode=FOLDER_MODE)
    except OSError as error:
        return f"{who}; cannot abandon it: {error.strerror}"
    return _void(attempt, Journal(run), who)


def _job_over(process: ProcessRecord, scheduler: Scheduler) -> bool:
    """Whether a process on another host has ended with its job: Slurm kills all processes of a job at its end."""
    try:
        record = scheduler.query([process.pid_job]).get(process.pid_job) if process.pid_job else None
    except SchedulerError:
        return False
    return record is not None and record.ended_for_good


def _void(attempt: AttemptFolder, journal: Journal, why: str) -> str | None:
    said = [event for event in read_journals(attempt.run) if event.event == "no answer"]
    causes = [event.reason for event in said if event.attempt == attempt.number and event.reason]
    try:
        claim = abandon(attempt, f"{NEVER_SUBMITTED}: {causes[-1]}" if causes else NEVER_SUBMITTED)
    except OSError as error:
        return f"{why}; cannot abandon it: {error.strerror or error}"
    if claim == Claim():
        return "another process is claiming it"
    if claim.void is not None:
        journal.note("voided", attempt=attempt.number, reason=claim.void, why=why)
    return None


def _owner(run: RunFolder, files: AttemptFiles) -> tuple[ProcessRecord | None, float]:
    """The submitting process and when it began: by the intent, else the journals, else the folder's age."""
    if files.intent is not None and files.intent.time is not None:
        return files.intent.process, files.intent.time
    for event in reversed(read_journals(run)):
        if event.event == "attempt claimed" and event.attempt == files.attempt.number:
            return event.process, event.time
    with suppress(OSError):
        return None, files.attempt.path.stat().st_mtime
    return None, time.time()


def _who(owner: ProcessRecord | None, age: float) -> str:
    return f"{owner or 'a process'} began to submit it {max(age, 0):.0f} s ago and has not recorded the outcome"


def _refused(record: JobRecord) -> bool:
    if record.state != "FAILED" or record.nodes:
        return False
    begun = record.started if record.started is not None else record.submitted
    return record.ended is None or begun is None or record.ended - begun <= 0
