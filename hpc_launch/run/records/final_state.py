"""final.json: the scheduler's last word on an attempt, kept because the scheduler forgets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from hpc_launch.base.files import create_once
from hpc_launch.run.records import values
from hpc_launch.run.records.attempt_files import AttemptFiles
from hpc_launch.schedulers.scheduler import ENDED_STATES, JobRecord

SETTLED_S = 60.0
"""How long after its end a job's COMPLETED may still lack the steps' exit codes, which accounting learns late."""

REQUEUE_S = 60.0
"""How long after its end a job that lost its nodes may still turn out to be requeued."""

MAY_COME_BACK = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})
"""After these Slurm may put the same job back into the queue."""


def settled(record: JobRecord) -> bool:
    """Whether this is the last that will be heard: over, with a time of its end, and late enough to be whole."""
    if not record.ended_for_good or record.ended is None:
        return False
    wait = 0.0
    if record.state == "COMPLETED" and record.derived_exit_code is None and record.source != "local":
        wait = SETTLED_S
    if record.state in MAY_COME_BACK:
        wait = REQUEUE_S
    return record.as_of - record.ended >= wait


def keep(files: AttemptFiles, record: JobRecord) -> None:
    """Write final.json once, where the record is the last word. What cannot be written is asked for again."""
    if files.final is None and settled(record):
        with suppress(OSError):
            create_once(files.attempt.final, json.dumps(asdict(record), indent=2) + "\n")


def record_of(data: Mapping[str, Any] | None) -> JobRecord | None:
    """The record in final.json; None where there is none, or where it is not one of an ended job."""
    if data is None:
        return None
    job_id, state = values.text(data.get("job_id")), values.text(data.get("state"))
    if job_id is None or state not in ENDED_STATES:
        return None
    return JobRecord(
        job_id=job_id,
        state=state,
        source=values.text(data.get("source")) or "none",
        as_of=values.seconds(data.get("as_of")) or 0.0,
        name=values.text(data.get("name")),
        reason=values.text(data.get("reason")),
        exit_code=values.whole(data.get("exit_code")),
        signal=values.whole(data.get("signal")),
        derived_exit_code=values.whole(data.get("derived_exit_code")),
        nodes=values.text(data.get("nodes")),
        submitted=values.seconds(data.get("submitted")),
        started=values.seconds(data.get("started")),
        ended=values.seconds(data.get("ended")),
        restarts=values.whole(data.get("restarts")),
        steps=_steps(data.get("steps")),
    )


def _steps(value: Any) -> tuple[tuple[str, str, str], ...]:
    rows = value if isinstance(value, list) else []
    return tuple(
        (str(row[0]), str(row[1]), str(row[2])) for row in rows if isinstance(row, (list, tuple)) and len(row) == 3
    )
