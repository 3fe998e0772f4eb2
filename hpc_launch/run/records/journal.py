"""What happened to a run, told by each process that did something to it: append-only JSON lines, a file a writer.

A file of its own for each writer because appends from two hosts to one file tear on NFS. The journals are a record
for people and for finding out who claimed an attempt; no state is decided by them alone.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from typing import Any, Literal

from hpc_launch.run.layout import RunFolder
from hpc_launch.run.records import values
from hpc_launch.run.records.process_identity import this_process

Event = Literal[
    "run created", "attempt claimed", "intent", "submitted", "adopted", "voided", "state", "cancel asked",
    "driver came", "driver gone", "verdict", "withdrawn", "sentinel",
]  # fmt: skip


class Journal:
    """The journal of this process in one run. The file appears with the first event."""

    def __init__(self, run: RunFolder, *, clock: Callable[[], float] = time.time) -> None:
        self._who = this_process()
        name = f"{self._who.host}-{self._who.pid}-{secrets.token_hex(2)}.jsonl"
        self._path = run.journal / name.replace("/", "_")
        self._clock = clock
        self._torn = False

    def write(self, event: Event, **fields: Any) -> None:
        """Append one event and bring it to the disk. Raises OSError."""
        line = json.dumps({"time": self._clock(), "event": event, **fields, **self._who.as_json()}, default=str)
        # After a write that a full disk cut short, a line end first: else this event would be lost in the torn one.
        data = (("\n" if self._torn else "") + line + "\n").encode()
        self._path.parent.mkdir(exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            self._torn = True
            while data:
                data = data[os.write(descriptor, data) :]
            self._torn = False
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def note(self, event: Event, **fields: Any) -> None:
        """`write`, for what must go on although the record of it cannot be kept."""
        try:
            self.write(event, **fields)
        except OSError:
            return


def read_journals(run: RunFolder) -> list[dict[str, Any]]:
    """All events of a run by time; lines that are torn or no events are left out. Never raises."""
    events: list[dict[str, Any]] = []
    try:
        paths = sorted(path for path in run.journal.iterdir() if path.name.endswith(".jsonl"))
    except OSError:
        return []
    for path in paths:
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError:
            continue
        events.extend(event for line in lines if (event := _event(line)) is not None)
    return sorted(events, key=lambda event: values.seconds(event["time"]) or 0.0)


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    good = isinstance(value, dict) and "event" in value and values.seconds(value.get("time")) is not None
    return value if good else None
