"""final.json and stuck.json: the scheduler's final state of a job, and since when a pending job can never start."""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.json_records import create_record, read_record
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.schedulers.scheduler import ENDED_STATES, JobRecord

SETTLED_S = 60.0
"""How long after its end a COMPLETED job may still lack the steps' exit codes, which accounting learns late."""

REQUEUE_S = 60.0
"""How long after its end a job that lost its nodes may still turn out to be requeued."""

MAY_COME_BACK = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})
"""After these Slurm may requeue the job."""


class StuckJob(Struct, frozen=True, kw_only=True):
    """stuck.json: when a driver first saw that the pending job can never start."""

    time: float | None = None
    reason: str | None = None


def stuck_since(attempt: AttemptFolder, job: JobRecord) -> float:
    """Since when the pending job cannot start. Kept in a file, so that it does not depend on any one driver."""
    with suppress(OSError):
        create_record(attempt.stuck, StuckJob(time=job.as_of, reason=job.reason))
    first = read_record(attempt.stuck, StuckJob)
    return job.as_of if first is None or first.time is None else first.time


def settled(record: JobRecord) -> bool:
    """Whether this state is final: ended, with an end time, and late enough to be complete."""
    if not record.ended_for_good or record.ended is None:
        return False
    wait = 0.0
    if record.state == "COMPLETED" and record.derived_exit_code is None and record.source not in ("local", "ssh"):
        wait = SETTLED_S
    if record.state in MAY_COME_BACK:
        wait = REQUEUE_S
    return record.as_of - record.ended >= wait


def keep_final(attempt: AttemptFolder, record: JobRecord) -> None:
    """Create final.json where the state is final.

    In a run of another user, and on a failed write, the scheduler is asked again later.
    """
    if settled(record):
        with suppress(OSError):
            create_record(attempt.final, record)


def final_of(record: JobRecord | None) -> JobRecord | None:
    """A record read from final.json; None where it is not one of an ended job."""
    return record if record is not None and record.ended_for_good else None


def of_attempt(record: JobRecord, first_step: int | None) -> JobRecord:
    """The record without the steps of the attempts that ran in the job before: those below `first_step`."""
    if not first_step:
        return record
    steps = tuple(step for step in record.steps if not step[0].isdecimal() or int(step[0]) >= first_step)
    codes = [code for step, state, code in steps if step.isdecimal() and state in ENDED_STATES]
    derived = (record.derived_exit_code if any(code != "0:0" for code in codes) else 0) if codes else None
    return replace(record, steps=steps, derived_exit_code=derived)
