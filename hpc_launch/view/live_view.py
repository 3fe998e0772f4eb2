"""The display of `submit --wait` and `watch`: live on a terminal, else a line on every change and a heartbeat."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

import click

from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view.format_values import clean, clock_time, duration
from hpc_launch.view.run_details import details, last_lines
from hpc_launch.view.run_table import table_lines
from hpc_launch.view.state_text import one_line, progress_parts
from hpc_launch.view.terminal import is_terminal, tolerant, wants_colour

if TYPE_CHECKING:
    from rich.text import Text

HEARTBEAT_S = 4.0
"""Seconds without output before a heartbeat line; with the polling interval it stays below 5 s."""

MAX_STEPS = 4
"""Number of runs whose step is shown in the heartbeat."""

_POLL_S = 0.25


class LineFollower:
    """Lines for a pipe or a CI log. A thread keeps the heartbeat going while the scheduler does not answer."""

    def __init__(self, stream: TextIO, *, many: bool, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._stream = tolerant(stream)
        self._many = many
        self._heartbeat_s = heartbeat_s
        self._started = self._last_output = time.monotonic()
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
                if time.monotonic() - self._last_output >= self._heartbeat_s:
                    self._say(self._heartbeat())

    def _heartbeat(self) -> str:
        statuses = list(self._statuses.values())
        if not statuses:
            return f"reading the runs for {duration(time.monotonic() - self._started)}"
        if not self._many:
            return one_line(statuses[0])
        counts = Counter(status.state.lower() for status in statuses)
        line = f"{len(statuses)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items())
        steps = [words[0] for status in statuses if not status.final and (words := progress_parts(status))]
        return line + (f"; {', '.join(steps[:MAX_STEPS])}" if steps else "")

    def _say(self, line: str) -> None:
        self._last_output = time.monotonic()
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
    roles = [(role.name, role.state, role.restarts) for role in status.roles.roles] if status.roles is not None else []
    return status.state, status.job_id, len(status.attempts), reason, status.warnings, phase, roles


REFRESHES = 4
"""Maximum number of redraws per second."""

LOG_LINES = 8
"""Number of log lines shown below a single run."""

_NOTE = "Ctrl-C stops watching; {jobs} running"


def follower(stream: TextIO, *, many: bool) -> LiveFollower | LineFollower:
    """The display for `stream`: live on a terminal, else a line for each change."""
    if is_terminal(stream):
        return LiveFollower(stream, many=many)
    return LineFollower(stream, many=many)


class LiveFollower:
    """A live display using rich: one run with progress bar and newest log lines, or a table of several runs."""

    def __init__(self, stream: TextIO, *, many: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._many = many
        self._seen: dict[str, tuple[float, RunStatus]] = {}
        self._log: list[str] = []
        self._colour = wants_colour(stream)
        self._console = Console(file=tolerant(stream), highlight=False, markup=False, emoji=False)
        # rich draws in its own thread, so ages keep counting while the scheduler does not answer.
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=REFRESHES,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def update(self, status: RunStatus) -> None:
        self._seen[status.run] = (time.monotonic(), status)
        if not self._many:
            # Read here rather than in `_draw`, which runs four times a second: the log is on a file server.
            self._log = last_lines(status, LOG_LINES)

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> Text:
        from rich.text import Text

        now, statuses = time.monotonic(), []
        for seen, status in list(self._seen.values()):
            statuses.append(replace(status, age_s=None if status.age_s is None else status.age_s + now - seen))
        height = self._console.height - 1
        if not statuses:
            lines = ["reading the runs …"]
        elif self._many:
            # Active runs first, so that they stay visible.
            ordered = sorted(statuses, key=lambda status: status.final)
            shown = ordered[: max(1, height - 3)]
            lines = table_lines(shown, width=self._console.width, colour=self._colour)
            lines += [f"and {len(ordered) - len(shown)} more"] if len(shown) < len(ordered) else []
            lines.append(_dim(_NOTE.format(jobs="the jobs keep"), colour=self._colour))
        else:
            lines = run_lines(statuses[0], self._log, height, colour=self._colour)
        # Lines are never wrapped, so that the height stays as calculated.
        return Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ellipsis")


def run_lines(status: RunStatus, log: list[str], height: int, *, colour: bool, now: float | None = None) -> list[str]:
    """One run and the end of its log, in at most `height` lines."""
    lines = details(status, colour=colour, live=True, now=now)
    left = min(max(0, height - len(lines) - 1), len(log))
    lines += [_dim(f"  | {line}", colour=colour) for line in log[len(log) - left :]]
    return [*lines, _dim(f"  {_NOTE.format(jobs='the job keeps')}", colour=colour)]


def _dim(text: str, *, colour: bool) -> str:
    return click.style(text, dim=True) if colour else text
