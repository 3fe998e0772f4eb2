"""Follow runs without a terminal: a line on every change, and a heartbeat every few seconds."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view.format_values import clean, clock_time, duration
from hpc_launch.view.state_text import one_line, progress_parts
from hpc_launch.view.terminal import tolerant

HEARTBEAT_S = 4.0
"""Seconds without output before a heartbeat line; with the polling interval it stays below 5 s."""

MAX_STEPS = 4
"""Number of runs whose step is shown in the heartbeat."""

_POLL_S = 0.25


class LineFollower:
    """Lines for a pipe or a CI log. A thread keeps the heartbeat going while the scheduler does not answer."""

    def __init__(
        self,
        stream: TextIO,
        *,
        many: bool,
        heartbeat_s: float = HEARTBEAT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = tolerant(stream)
        self._many = many
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._started = self._last_output = clock()
        self._statuses: dict[str, RunStatus] = {}
        self._keys: dict[str, tuple[object, ...]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def update(self, status: RunStatus) -> None:
        with self._lock:
            self._statuses[status.run] = status
            key = _key(status)
            if self._keys.get(status.run) != key:
                self._keys[status.run] = key
                self._say(f"{clean(status.run)}: {one_line(status)}" if self._many else one_line(status))
                for warning in status.warnings:
                    self._say(f"{f'{clean(status.run)}: ' if self._many else ''}warning: {clean(warning)}")

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._closed.wait(min(_POLL_S, self._heartbeat_s)):
            with self._lock:
                if self._clock() - self._last_output >= self._heartbeat_s:
                    self._say(self._heartbeat())

    def _heartbeat(self) -> str:
        statuses = list(self._statuses.values())
        if not statuses:
            return f"reading the runs for {duration(self._clock() - self._started)}"
        if not self._many:
            return one_line(statuses[0])
        counts = Counter(status.state.lower() for status in statuses)
        line = f"{len(statuses)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items())
        steps = [words[0] for status in statuses if not status.final and (words := progress_parts(status))]
        return line + (f"; {', '.join(steps[:MAX_STEPS])}" if steps else "")

    def _say(self, line: str) -> None:
        self._last_output = self._clock()
        try:
            self._stream.write(f"{clock_time(time.time())} {line}\n")
            self._stream.flush()
        except (OSError, ValueError):
            # The reader is gone; keep following the run, because its end decides the exit code.
            self._closed.set()


def _key(status: RunStatus) -> tuple[object, ...]:
    """What counts as a change; numbers in a reason are ignored because they may be counters."""
    reason = re.sub(r"\d+", "#", status.reason or "")
    phase = status.startup.phase if status.startup is not None else None
    return status.state, status.job_id, len(status.attempts), reason, status.warnings, phase
