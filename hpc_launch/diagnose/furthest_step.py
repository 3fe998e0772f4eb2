"""Find how far the training got, by its own log lines, and whether it reports that it is done."""

from __future__ import annotations

import re
from bisect import bisect_right

import msgspec

from hpc_launch.diagnose.evidence import Hit, LogScan
from hpc_launch.diagnose.line_kind import EPOCH, LOSS, Kind, shown_step

_NEAR = 4
"""Maximum number of lines between the last words of a failed program and those of the job's script."""
_LAST_WORDS = 12
"""Maximum number of lines after the last result that a log reports."""
_NUMBERS = re.compile(r"[\d:.\-]+")
_QUIET_S = 1500.0
"""Seconds after the last step from which a log that only repeats itself shows a hang."""
_MARKS = 50_000
_AFTER = 50
_FORMS = 500


class ProgressMeter:
    """Sees every line of a log once."""

    def __init__(self) -> None:
        self.steps = 0
        self._step: float | None = None
        self.line = 0
        """The line of the last step."""
        self._time: float | None = None
        self._marks: list[int] = []
        self._done: tuple[int, str] = (0, "")
        self._nan_run = self._nan_line = 0
        self._nan_text = ""
        self._bad: tuple[int, str] = (0, "")
        self._death = 0
        self._after: dict[str, _Repeated] = {}
        self._counters: dict[int, _Counter] = {}
        self._reports: dict[str, int] = {}

    def see(self, kind: int, text: str, line: int, time: float | None) -> None:
        """Take one line."""
        if kind & Kind.LOSS:
            self._loss(text, line)
        if kind & Kind.STEP and self._is_step(text, line):
            self.line, self._time = line, time
            self._after.clear()
            return
        if kind & Kind.DEATH:
            self._death = max(line, self._death)
        echo = kind & Kind.ECHO and 0 < self._death >= line - _NEAR
        if kind & Kind.DONE and not echo and line >= self._done[0]:
            self._done = (line, text.strip()[:300])
        if kind & Kind.BAD and line >= self._bad[0]:
            self._bad = (line, text.strip()[:300])
        if kind & Kind.REPORT and len(self._reports) < _FORMS:
            self._reports.setdefault(_NUMBERS.sub("#", text[:60]), line)
        if line > self.line and len(self._after) < _AFTER:
            key = _NUMBERS.sub("#", text[:120])
            before = self._after.get(key)
            self._after[key] = (
                _Repeated(1, line, text, time, time) if before is None else before.again(line, text, time)
            )

    def after(self, hit: Hit, begins: int) -> Hit:
        """The hit, with what follows it in the log. `begins`: the first line of the last episode."""
        later = len(self._marks) - bisect_right(self._marks, hit.line)
        success = self._done[0] > hit.line
        earlier = hit.line < begins
        if not later and not success and not earlier:
            return hit
        return msgspec.structs.replace(hit, later_progress=later, later_success=success, earlier=earlier)

    def into(self, scan: LogScan) -> LogScan:
        """The scan, with how far the training got."""
        idle_s, idle_line, idle_text = self._idle()
        begins = scan.episode_line
        counters = [(total, counter) for total, counter in self._counters.items() if counter.line >= begins]
        open_ = [(total, counter) for total, counter in counters if counter.last < total - counter.from_zero]
        total, step = max(((total, counter.last) for total, counter in open_ or counters), default=(None, self._step))
        report = max(self._reports.values(), default=0)
        return msgspec.structs.replace(
            scan,
            steps_seen=self.steps if self.line >= begins else 0,
            last_step=int(step) if step is not None else None,
            last_total=total,
            last_progress_line=self.line,
            complete=bool(counters) and not open_,
            report_line=report if report >= max(begins, scan.lines - _LAST_WORDS, 1) else 0,
            success_line=self._done[0] if self._done[0] >= begins else 0,
            success_text=self._done[1],
            nan_run=self._nan_run,
            nan_line=self._nan_line,
            nan_text=self._nan_text,
            idle_s=idle_s,
            idle_line=idle_line,
            idle_text=idle_text,
            bad_line=self._bad[0] if self._bad[0] >= begins else 0,
            bad_text=self._bad[1],
        )

    def _is_step(self, text: str, line: int) -> bool:
        low = text.lower()
        found = shown_step(text, low)
        if found is None:
            return False
        self._count(found, line)
        if "epoch" in low and (epoch := EPOCH.search(text)) is not None and epoch[2]:
            self._count((float(epoch[1]), int(epoch[2])), line)
        if found[0] == self._step:
            return False
        self._step = found[0]
        self.steps += 1
        self._marks.append(line)
        if len(self._marks) > 2 * _MARKS:
            del self._marks[:_MARKS]
        return True

    def _count(self, found: tuple[float, int | None], line: int) -> None:
        """Follow the counter with this total."""
        step, total = found
        if total is None or (total not in self._counters and len(self._counters) >= _AFTER):
            return
        before = self._counters.get(total)
        self._counters[total] = _Counter(step, before.from_zero if before is not None else step == 0, line)

    def _loss(self, text: str, line: int) -> None:
        match = LOSS.search(text)
        if match is None or "skip" in text.lower():
            return  # fp16 repeats a step with a smaller scale: not a failure
        if match[1].lower().lstrip("-").startswith(("nan", "inf")):
            self._nan_run += 1
            if self._nan_run == 1:
                self._nan_line, self._nan_text = line, text.strip()[:300]
        else:
            self._nan_run = 0

    def _idle(self) -> tuple[float, int, str]:
        """Lines that only repeat long after the last step: a heartbeat, not the training."""
        if not self._after or len(self._after) > 12:
            return 0.0, 0, ""
        repeated = [entry for entry in self._after.values() if entry.count > 1]
        if not repeated or not self.line:
            return 0.0, 0, ""
        last = max(repeated, key=lambda entry: entry.line)
        begun = self._time if self._time is not None else last.first
        if begun is None or last.time is None or last.time - begun < _QUIET_S:
            return 0.0, 0, ""
        return last.time - begun, last.line, last.text.strip()[:300]


class _Counter(msgspec.Struct, frozen=True):
    """The last step seen of a counter with a total."""

    last: float
    from_zero: bool
    line: int


class _Repeated(msgspec.Struct, frozen=True):
    """A line that repeats, apart from its numbers."""

    count: int
    line: int
    text: str
    first: float | None
    time: float | None

    def again(self, line: int, text: str, time: float | None) -> _Repeated:
        return _Repeated(self.count + 1, line, text, self.first if self.first is not None else time, time)
