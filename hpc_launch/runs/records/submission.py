"""Who has an attempt: intent.json, job.json, claim, cancel.json, start.json, end.json and successor.json."""

from __future__ import annotations

import os
import secrets
import string
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, structs
from msgspec.structs import replace

from hpc_launch.base.errors import NotNow, SubmitRefused
from hpc_launch.base.files import create_once, read_text
from hpc_launch.base.json_records import create_record, write_record
from hpc_launch.job.hostlist import names_or_text
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.records.run_info import ProcessRecord, by_this_process


class Overrides(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an attempt differs from the job file."""

    set: tuple[str, ...] = ()
    """Its `--set` options."""
    exclude: tuple[str, ...] = ()
    """Nodes that the run excludes."""
    readmitted: tuple[str, ...] = ()
    """Nodes that the run no longer excludes."""
    ledger: tuple[str, ...] = ()
    """Nodes excluded because the node health store lists them."""

    def by_name(self) -> dict[str, tuple[str, ...]]:
        """The differences there are, by name."""
        return {name: values for name, values in structs.asdict(self).items() if values}


class Intent(ProcessRecord, frozen=True, kw_only=True):
    """intent.json: written before sbatch, so that the token finds the job whatever happens to the driver."""

    token: str = ""
    job_name: str | None = None
    time: float | None = None
    """When the submission began, in seconds since the epoch."""
    options: tuple[str, ...] = ()
    """sbatch options of this attempt only."""
    overrides: Overrides = Overrides()
    task: int | None = None
    """The task of a job array that is to run the attempt; None for a job of its own."""

    def job_of(self, found: str) -> str:
        """The job of this attempt, where a job `found` has the intent's name."""
        return found if self.task is None else f"{array_of(found)}_{self.task}"


def new_intent(name: str, number: int, options: tuple[str, ...], overrides: Overrides) -> Intent:
    """The intent to submit attempt or array `number` of a run with this name, under a job name of its own."""
    token = new_token()
    job_name, by = f"{name}.{token}.{number}", by_this_process()
    return Intent(token=token, job_name=job_name, time=time.time(), options=options, overrides=overrides, **by)


def new_token() -> str:
    """The part of a job's name by which a lost submission is found again."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(8))


def array_of(job_id: str) -> str:
    """The id of the job array that a task such as `12_7` or `12_[8-9]` belongs to."""
    return job_id.partition("_")[0]


def array_folder(attempt: AttemptFolder, intent: Intent) -> AttemptFolder | None:
    """The folder of the job array that is to run a point's attempt: its number ends the job's name."""
    sweep = attempt.run.sweep if intent.task is not None else None
    number = (intent.job_name or "").rpartition(".")[2]
    if sweep is None or not number.isdecimal():
        return None
    return AttemptFolder(sweep.arrays / f"{int(number):03d}")


class SubmittedJob(Struct, frozen=True, kw_only=True):
    """job.json: the job of an attempt."""

    job_id: str | None = None
    submitted: float | None = None
    restart: int | None = None
    """How often Slurm had requeued the job when the attempt began."""
    cluster: str | None = None


def write_job(
    attempt: AttemptFolder, job_id: str, submitted: float, cluster: str | None = None, *, restart: int = 0
) -> bool:
    """Create job.json; true for the process that created it. Raises OSError."""
    record = SubmittedJob(job_id=job_id, submitted=submitted, restart=restart, cluster=cluster)
    return create_record(attempt.job, record)


VOID = "void"
"""The first word of a claim that belongs to no job."""

CANCELLED = "cancelled"
"""How the reason of a void claim begins where a user cancelled the attempt before a job had claimed it."""

NEVER_SUBMITTED = "never submitted"
"""How the reason of a void claim begins whose driver ended before it submitted the job. The cause follows if known."""

VANISHED = "vanished"
"""How the reason of a void claim begins whose job the scheduler forgot before it began."""


class Claim(Struct, frozen=True):
    """The owner of an attempt: a job, or nobody for the reason in `void`."""

    job_id: str | None = None
    void: str | None = None


class CancelRequest(Struct, frozen=True, kw_only=True):
    """cancel.json: a user asked for the end of an attempt."""

    time: float | None = None
    by: str | None = None
    host: str | None = None
    sent: float | None = None
    """When the scheduler accepted it; None while it has not been reached."""


def request_cancel(path: Path, by: str) -> None:
    """Record in this cancel.json who asks for the end. Raises OSError."""
    write_record(path, CancelRequest(time=time.time(), by=by, host=os.uname().nodename))


LONGEST_CLAIM = 4000
"""Characters of a claim that are read: another user's run may have any."""


def read_claim(attempt: AttemptFolder) -> Claim | None:
    """The claim; None while there is none."""
    try:
        return parse_claim(read_text(attempt.claim, errors="replace"))
    except OSError:
        return None


def was_refused(reason: str | None, *, for_now: bool = False) -> bool:
    """Whether the scheduler refused a job; `for_now`: for what passes by itself."""
    return reason is not None and reason.startswith(NotNow.how if for_now else SubmitRefused.how)


def never_submitted(void: str | None) -> bool:
    """Whether a claim is void because its driver ended before it submitted the job."""
    return void is not None and void.startswith(NEVER_SUBMITTED)


def parse_claim(text: str) -> Claim | None:
    """The only line of a claim file; None for an empty file, which is just being written."""
    words = text.strip()[:LONGEST_CLAIM].splitlines()[0].split(maxsplit=1) if text.strip() else []
    if not words:
        return None
    if words[0].rstrip(":") == VOID:
        return Claim(void=words[1].strip() if len(words) > 1 else "abandoned")
    return Claim(job_id=words[0])


def abandon(attempt: AttemptFolder, reason: str) -> Claim:
    """Make sure that no job will ever train for this attempt, unless one has claimed it already.

    Returns the owner: nobody (`void` is set) or a job (`job_id` is set); neither is set while another process is
    writing its claim. Raises OSError.
    """
    line = " ".join(reason.split())
    if create_once(attempt.claim, f"{VOID} {line}\n"):
        return Claim(void=line)
    return read_claim(attempt) or Claim()


class ScriptRecord(Struct, frozen=True, kw_only=True):
    """A record of the script. Times are seconds since the epoch."""

    job_id: str | None = None
    restart: int | None = None
    """How often Slurm had requeued the job."""
    first_step: int | None = None
    """The number of the job's first step of this attempt; None where the attempt began with the job."""
    exit_code: int | None = None
    signal: str | None = None
    """The signal that ended the script."""
    phase: str | None = None
    """`environment`, `check` (the node check) or `stage` (staging) before the training was started."""
    started: float | None = None
    ended: float | None = None
    """In start.json: when the phase began."""
    warned: bool = False
    """Whether the script was warned of its end (a time stamp in the file)."""
    warned_by: str | None = None
    """The signal that warned it: USR1, or TERM for a preemption."""
    lost_nodes: int = 0
    """Nodes that an elastic run has lost."""
    resumed_step: int | None = None
    saved_step: int | None = None
    """The step of the newest checkpoint at the end."""
    finished: bool = False
    """Whether the training said that no steps are left."""
    nodes: str | None = None
    """Slurm's host list."""

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes by number."""
        return names_or_text(self.nodes)

    @property
    def preempted(self) -> bool:
        """Whether a preemption warned the script (parts/guard.sh takes a SIGTERM for one)."""
        return self.warned_by == "TERM"


class SuccessorRecord(ProcessRecord, frozen=True, kw_only=True):
    """A successor job. The record is created before sbatch, so that a run has at most one for each of its jobs."""

    after: str
    """The job that it waits for."""
    job_name: str | None = None
    time: float | None = None
    """When the submission began, in seconds since the epoch."""
    job_id: str | None = None
    """None while it is being submitted, and where its submitter was killed."""
    refused: str | None = None
    """Why the scheduler refused it."""
    over: bool = False
    """Whether the scheduler reported its end or cancelled it: it is not asked about it again."""


def keep_over(attempt: AttemptFolder, record: SuccessorRecord) -> None:
    """Note that the successor is over, if the run is this user's."""
    with suppress(OSError):
        write_record(attempt.successor, replace(record, over=True))
