"""The journal of a run: events by each process that changed it. JSON Lines, append-only, one file per process.

Each process has its own file because appends from two hosts to one file tear on NFS. Journals are for people and for
finding out who claimed an attempt; no state is decided by them alone.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from hpc_launch.base.json_records import file_lines, line_record
from hpc_launch.runs.layout import FOLDER_MODE, RunFolder
from hpc_launch.runs.records.run_info import ProcessRecord, process_fields, this_process

Event = Literal[
    "run created", "attempt claimed", "intent", "submitted", "adopted", "voided", "state", "cancel asked",
    "driver came", "driver gone", "verdict", "withdrawn", "sentinel", "no answer",
    "cancel sent", "node report", "continued in its job", "taken over", "successor", "successor cancelled",
]  # fmt: skip

_SUFFIX = ".jsonl"


class JournalEvent(ProcessRecord, frozen=True, kw_only=True):
    """One event of a run and the process that wrote it. `time` is in seconds since the epoch."""

    time: float
    event: str
    attempt: int | None = None
    job_id: str | None = None
    reason: str | None = None
    state: str | None = None


class Journal:
    """The journal of this process in one run. The file is created with the first event."""

    def __init__(self, run: RunFolder, *, clock: Callable[[], float] = time.time) -> None:
        process = this_process()
        self._process = process_fields(process)
        name = f"{process.host}-{process.pid}-{secrets.token_hex(2)}{_SUFFIX}"
        self._run = run
        self._path = run.journal / name.replace("/", "_")
        self._clock = clock
        self._torn = False

    def write(self, event: Event, **fields: Any) -> None:
        """Append one event. Raises OSError."""
        line = json.dumps({"time": self._clock(), "event": event, **fields, **self._process}, default=str)
        # After a write that a full disk cut short, a newline first: this event would be lost in the torn line.
        data = (("\n" if self._torn else "") + line + "\n").encode()
        self._path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            self._torn = True
            while data:
                data = data[os.write(descriptor, data) :]
            self._torn = False
        finally:
            os.close(descriptor)

    def note(self, event: Event, **fields: Any) -> None:
        """Append an event if possible: for acts that must go on although they cannot be recorded."""
        with suppress(OSError):
            self.write(event, **fields)


def read_journals(run: RunFolder) -> list[JournalEvent]:
    """All events of a run by time, without torn or foreign lines. Never raises."""
    try:
        paths = sorted(path for path in run.journal.iterdir() if path.name.endswith(_SUFFIX))
    except OSError:
        return []
    events = [line_record(line, JournalEvent) for path in paths for line in file_lines(path)]
    return sorted((event for event in events if event is not None), key=lambda event: event.time)
