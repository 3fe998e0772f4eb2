"""Following runs where no cursor can be moved: a line when something changed, and one every few seconds anyway."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from hpc_launch.run.status.run_status import RunStatus
from hpc_launch.view.format_values import clean, duration, moment
from hpc_launch.view.state_text import one_line, progress_words
from hpc_launch.view.terminal import tolerant

HEARTBEAT_S = 4.0
"""After so long in silence a line says that all is well; with the pause between two looks that stays below 5 s."""

MOST_STEPS = 4
"""Of so many runs the step stands in the heartbeat."""

_LOOKS_S = 0.25


class PlainFollower:
    """Lines for a pipe or a CI log. A thread of its own keeps up the heartbeat while a scheduler does not answer."""

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
        self._began = self._spoke = clock()
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

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._closed.wait(min(_LOOKS_S, self._heartbeat_s)):
            with self._lock:
                if self._clock() - self._spoke >= self._heartbeat_s:
                    self._say(self._heartbeat())

    def _heartbeat(self) -> str:
        statuses = list(self._statuses.values())
        if not statuses:
            return f"looking since {duration(self._clock() - self._began)}"
        if not self._many:
            return one_line(statuses[0])
        counts = Counter(status.state.lower() for status in statuses)
        line = f"{len(statuses)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items())
        steps = [words[0] for status in statuses if not status.final and (words := progress_words(status))]
        return line + (f"; {', '.join(steps[:MOST_STEPS])}" if steps else "")

    def _say(self, line: str) -> None:
        self._spoke = self._clock()
        try:
            self._stream.write(f"{moment(time.time())} {line}\n")
            self._stream.flush()
        except (OSError, ValueError):
            # Whoever read has gone; the run is followed all the same, because its end decides the exit code.
            self._closed.set()


def _key(status: RunStatus) -> tuple[object, ...]:
    """What makes a change worth a line; numbers in a reason count up by themselves."""
    reason = re.sub(r"\d+", "#", status.reason or "")
    return status.state, status.job_id, len(status.attempts), reason
