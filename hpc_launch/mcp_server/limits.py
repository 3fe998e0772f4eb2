"""What assistants may do: the `agents:` section of user.yaml, enforced here, and the journal of what they did."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.errors import Refused, UsageError
from hpc_launch.base.files import make_private, state_folder
from hpc_launch.base.json_records import as_type, file_lines, line_record, record_text
from hpc_launch.prepare.prepare import PreparedJob
from hpc_launch.sites.profile import AgentLimits
from hpc_launch.sites.read_profile import read_user_overlay

DAY_S = 86400.0


class JournalEntry(Struct, frozen=True, kw_only=True):
    """A line of the journal: one request of an assistant, and what came of it."""

    time: float
    """Seconds since the epoch."""
    tool: str
    request: dict[str, Any] = {}
    outcome: str
    """`done`, or the error."""
    run: str | None = None
    """The run that was submitted."""
    gpu_hours: float = 0.0
    """The most that the run may use, with all its attempts."""


def read_limits() -> AgentLimits | None:
    """The `agents:` section of user.yaml; None without one. Raises Refused, UsageError if the file is invalid."""
    findings: list[Any] = []
    document = read_user_overlay(findings)
    if findings:
        raise Refused(findings)
    section = document.data.get("agents") if document is not None else None
    return None if section is None else as_type(section, AgentLimits)


class Journal:
    """What assistants did, one JSON object per line: `~/.local/state/hpc-launch/agents.jsonl`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = make_private(folder or state_folder()) / "agents.jsonl"

    def entries(self) -> list[JournalEntry]:
        """All entries, oldest first."""
        found = (line_record(line, JournalEntry) for line in file_lines(self.path, links=False))
        return [one for one in found if one is not None]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other server checks the limits meanwhile. Raises OSError."""
        with open(self.path.with_suffix(".lock"), "w", opener=_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def note(self, entry: JournalEntry) -> None:
        """Append an entry. Raises OSError."""
        with open(self.path, "a", encoding="utf-8", opener=_private) as stream:
            stream.write(record_text(entry, indent=None))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def gpu_hours(jobs: Sequence[tuple[PreparedJob, int]]) -> tuple[float, float]:
    """The most that one of these jobs, and all together, may use with all attempts. Raises UsageError."""
    most = total = 0.0
    for prepared, number in jobs:
        plan = prepared.plan
        if plan.time_limit_s is None:
            raise UsageError("a job of an assistant needs a time limit", "add `time:`")
        attempts = plan.recovery.retry.max_attempts
        one = plan.gpus * max(plan.time_limit_s, plan.recovery.most_time_s or 0) * attempts / 3600
        most, total = max(most, one), total + one * number
    return most, total


def check_limits(journal: Journal, jobs: Sequence[tuple[PreparedJob, int]]) -> float:
    """Check jobs against the limits as they are now, and return their GPU hours. Raises UsageError."""
    limits = read_limits()
    if limits is None:
        raise UsageError("user.yaml has no section `agents:`, so that assistants only read")
    most, total = gpu_hours(jobs)
    today = [one for one in journal.entries() if one.outcome == "done" and one.run and one.time > time.time() - DAY_S]
    used = sum(one.gpu_hours for one in today)
    for prepared, _ in jobs:
        resolved = prepared.loaded.resolved
        _refuse_other("site", prepared.plan.site, limits.sites)
        _refuse_other("queue", resolved.site.queue_of(resolved.job.queue), limits.queues)
    if most > limits.gpu_hours_per_job:
        attempts = "with all its attempts (`retry.max_attempts`)"
        raise _beyond(f"a job may use {most:g} GPU hours {attempts}", f"{limits.gpu_hours_per_job:g} for a job")
    if used + total > limits.gpu_hours_per_day:
        said = f"{total:g} GPU hours after {used:g} in the last 24 hours"
        raise _beyond(said, f"{limits.gpu_hours_per_day:g} for a day")
    number = sum(count for _, count in jobs)
    if len(today) + number > limits.jobs_per_day:
        raise _beyond(f"{number} jobs after {len(today)} in the last 24 hours", f"{limits.jobs_per_day} jobs for a day")
    return total


def _refuse_other(what: str, name: str, allowed: Sequence[str] | None) -> None:
    if allowed is not None and name not in allowed:
        raise _beyond(f"{what} {name}", f"the {what}s {', '.join(allowed) or '(none)'}")


def _beyond(what: str, limit: str) -> UsageError:
    return UsageError(
        f"beyond the limits for assistants: {what}; user.yaml allows {limit}", "ask the user to submit it"
    )
