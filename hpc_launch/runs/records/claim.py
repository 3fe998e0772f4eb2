"""claim and cancel.json: whose attempt it is (a job's, or nobody's), and who asked for its end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.files import create_once, read_text
from hpc_launch.base.json_records import write_record
from hpc_launch.runs.layout import AttemptFolder

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


def read_claim(attempt: AttemptFolder) -> Claim | None:
    """The claim; None while there is none."""
    try:
        return parse_claim(read_text(attempt.claim, errors="replace"))
    except OSError:
        return None


def never_submitted(void: str | None) -> bool:
    """Whether a claim is void because its driver ended before it submitted the job."""
    return void is not None and void.startswith(NEVER_SUBMITTED)


def parse_claim(text: str) -> Claim | None:
    """The only line of a claim file; None for an empty file, which is just being written."""
    words = text.strip().splitlines()[0].split(maxsplit=1) if text.strip() else []
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
