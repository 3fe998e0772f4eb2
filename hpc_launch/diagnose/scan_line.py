"""Scan the lines of a log: classify each form of line once, and match lines against the rules with limited work."""

from __future__ import annotations

import re
from collections import deque

from msgspec import Struct

from hpc_launch.diagnose.evidence import LogScan
from hpc_launch.diagnose.furthest_step import ProgressMeter
from hpc_launch.diagnose.line_kind import Episodes, Kind, line_kind, shows_progress
from hpc_launch.diagnose.log_line import line_time, parse, plain, year_of
from hpc_launch.diagnose.rule_hits import RuleHits
from hpc_launch.diagnose.rulebook import Rulebook
from hpc_launch.diagnose.torchrun_failures import WorkerBlocks, starts_block
from hpc_launch.diagnose.tracebacks import IGNORED, Tracebacks

UNITS = 100_000_000
"""Characters that expressions search in one log, about five seconds. Ordinary logs of failures take a tenth of it."""

LINE_UNITS = 1000
"""What a line takes before any expression searches it."""


class MatchBudget:
    """The work that is left for a log. Once it is spent, only the end of the log is matched."""

    def __init__(self, units: int = UNITS) -> None:
        self._left = units

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return self._left <= 0

    def spend(self, units: int) -> None:
        """Take off what a line took."""
        self._left -= units

    def for_next_log(self) -> MatchBudget:
        """The budget of the attempt's next log: what is left, and never too little for an ordinary log."""
        return MatchBudget(max(self._left, UNITS // 20))


FIRST = 1000
"""How many lines with the same words of rules are read at once."""
LAST = 200
"""How many of the later ones are read at the end of the log."""
_SETS = 20_000
"""How many sets of words are remembered."""


class HeldLine(Struct, frozen=True):
    """A line that is read at the end of the log."""

    line: int
    text: str
    task: int | None
    time: float | None
    """The latest time known at this line."""


class CrowdedLines:
    """Counts lines by the words of rules in them, and holds back the last of those that come too often."""

    def __init__(self) -> None:
        self._count: dict[frozenset[int], int] = {}
        self._held: dict[frozenset[int], deque[HeldLine]] = {}

    def crowded(self, words: frozenset[int]) -> bool:
        """Count a line with these words of rules; True if enough such lines were read."""
        if not words:
            return False
        count = self._count.get(words, 0) + 1
        if count > FIRST:
            return True
        if len(self._count) < _SETS or words in self._count:
            self._count[words] = count
        return False

    def hold(self, words: frozenset[int], line: HeldLine) -> None:
        """Keep such a line until the end of the log, or until enough others have followed."""
        self._held.setdefault(words, deque(maxlen=LAST)).append(line)

    def release(self) -> list[HeldLine]:
        """The lines that were held back, in order."""
        held = sorted((line for lines in self._held.values() for line in lines), key=lambda line: line.line)
        self._held.clear()
        return held


_FORMS = 20_000
"""How many line shapes are remembered before the memory is cleared."""
_OFTEN = 20
"""How many lines of one shape (long numbers ignored) are matched against the rules."""
_PIECES = 200
"""How many states of a progress bar that redraws itself in one line are scanned."""
TAIL_LINES = 100
"""How many lines at the end of a log are scanned although its budget is spent."""

_DIGITS = b"0123456789"
_LONG_NUMBERS = re.compile(r"\d{4,}|0x[0-9a-fA-F]+|\d+\.\d+|\b(?=[a-f]*\d)[0-9a-f]{6,}\b")
_LABEL = re.compile(rb"[ ]{0,6}(\d{1,6}): ?")
"""The task number that `srun --label` writes before each line."""
_SOURCE = re.compile(
    r"\s{0,12}(?:-{2,10}> ?)?\d{1,6} {1,80}"
    r"(?:#|[frb]?[\"']|(?:raise|from|import|return|if|elif|def|with|for|class|assert) |try:|except\b)"
)
"""A numbered source line, as IPython prints around an exception."""
_SKIP, _RULES, _ALWAYS = 0, 1, 2


class LineScanner:
    """Takes the lines of one log in order; `finish` returns the result."""

    def __init__(
        self, rules: Rulebook, name: str, budget: MatchBudget, *, source: int, node: str | None, rank: int | None
    ) -> None:
        self._rules, self._budget = rules, budget
        self._tail: deque[tuple[int, int | None, bytes]] = deque()
        self._name, self._source, self._node, self._rank = name, source, node, rank
        self._labelled = self._unlabelled = 0
        self._task: int | None = None
        self._line = 0
        self.scanned = 0
        """How many lines were classified, which takes most of the time."""
        self._forms: dict[bytes, tuple[int, int, bool]] = {}
        self._seen: dict[str, int] = {}
        self._crowds = CrowdedLines()
        self._time: float | None = None
        self._year: int | None = None
        self._last = b""
        self._traces = Tracebacks()
        self._progress = ProgressMeter()
        self._episodes = Episodes()
        self._workers = WorkerBlocks(name, source)
        self._found = RuleHits(rules, self._traces, self._workers, name=name, source=source, node=node, rank=rank)

    @property
    def found(self) -> int:
        """How many lines were recorded because a rule matched them."""
        return self._found.recorded

    def busy(self, number: int) -> bool:
        """Whether a line must be scanned because it may continue a traceback or a list of failed workers."""
        return not self._budget.spent and (self._traces.busy(number) or self._workers.place is not None)

    def take(self, raw: bytes, number: int) -> None:
        """Scan the line with this number."""
        self._line = number
        raw = self._without_label(raw)
        if not raw:
            return
        if b"\r" not in raw:
            self._piece(raw)
            return
        pieces = [piece for piece in raw.split(b"\r") if piece]
        half = _PIECES // 2
        for piece in pieces if len(pieces) <= _PIECES else pieces[:half] + pieces[-half:]:
            self._piece(piece)

    def _piece(self, raw: bytes) -> None:
        """Scan a line, or keep it for the end of the log if the budget is spent."""
        self._last = raw
        if not self._budget.spent:
            self._scan(raw)
            return
        self._tail.append((self._line, self._task, raw))
        if len(self._tail) > TAIL_LINES:
            self._pass(*self._tail.popleft())

    def _pass(self, line: int, _task: int | None, raw: bytes) -> None:
        """Take only the progress that a line shows."""
        text = plain(raw)
        low = text.lower()
        if shows_progress(text, low):
            self._progress.see(line_kind(parse(text).body, low), text, line, self._now(text))

    def _scan(self, raw: bytes) -> None:
        """Classify lines of the same shape (digits ignored) once: a training prints the same few millions of times."""
        busy = self.busy(self._line)
        form = raw[:1000].translate(None, _DIGITS)
        known = None if busy else self._forms.get(form)
        if known is not None and known[0] == _SKIP and known[1] == Kind.PLAIN and not known[2]:
            self._progress.see(Kind.PLAIN, "", self._line, None)
            return
        text = plain(raw)
        if known is None:
            low = text.lower()
            words = None if _opens(low) else frozenset(self._rules.words_of(low))
            if words and not busy and self._crowds.crowded(words) and not shows_progress(text, low):
                self._crowds.hold(words, HeldLine(self._line, text, self._task, self._time))
                return
            known = self._judged(text, low, words)
            if len(self._forms) >= _FORMS:
                self._forms.clear()
            self._forms[form] = known
        look, kind, dated = known
        self._progress.see(kind, text, self._line, self._now(text) if dated else None)
        if kind & Kind.EPISODE:
            self._episodes.see(text, self._line)
        if look != _SKIP or busy:
            self._look(text, limited=look == _RULES and not busy)

    def _held_back(self) -> None:
        """Scan the lines that were held back; they belong to no traceback."""
        time = self._time
        for held in self._crowds.release():
            self._line, self._task, self._time = held.line, held.task, held.time
            low = held.text.lower()
            look, kind, dated = self._judged(held.text, low, frozenset(self._rules.words_of(low)))
            self._progress.see(kind, held.text, held.line, self._now(held.text) if dated else None)
            if look != _SKIP:
                self._look(held.text, limited=True)
        self._time = time

    def _without_label(self, raw: bytes) -> bytes:
        """The line without its task number, in a log where most lines have one."""
        match = _LABEL.match(raw)
        self._task = None
        if match is None:
            self._unlabelled += 1
            return raw
        self._labelled += 1
        if self._labelled < 2 * self._unlabelled:
            return raw
        self._task = int(match[1])
        return raw[match.end() :]

    def _judged(self, text: str, low: str, words: frozenset[int] | None) -> tuple[int, int, bool]:
        """Classify the lines of a shape: whether a rule may match, their kind, whether they contain a time.

        `words`: those of rules in the line; None for a line that must be looked at in any case.
        """
        self.scanned += 1
        if not text or text.isspace() or text.startswith("+ ") or _SOURCE.match(text):  # "+ ": `set -x` of bash
            return _SKIP, Kind.PLAIN, False
        if low.lstrip().startswith('file "'):  # a frame of a traceback
            return _ALWAYS, Kind.PLAIN, False
        look = _ALWAYS if words is None else _RULES if words else _SKIP
        stamp = line_time(text, self._year or 2000)
        if stamp is not None and self._year is None and line_time(text) is not None:
            self._year = year_of(stamp)
        return look, line_kind(parse(text).body, low), stamp is not None

    def _now(self, text: str) -> float | None:
        """The time of this line, or of the last line that had one."""
        stamp = line_time(text, self._year)
        if stamp is not None:
            self._time = stamp
        return self._time

    def _look(self, text: str, *, limited: bool) -> None:
        if limited:
            key = _LONG_NUMBERS.sub("#", text)
            count = self._seen.get(key, 0) + 1
            if len(self._seen) >= _FORMS:
                self._seen.clear()
            self._seen[key] = count
            if count > _OFTEN:
                return
        self._budget.spend(LINE_UNITS)
        line = parse(text, self._task)
        self._workers.see(line.body, self._line)
        if not self._traces.takes(line, self._line):
            before = self._rules.searched
            self._found.line(line, text, self._line, self._time)
            self._budget.spend(self._rules.searched - before)

    def finish(self, lines: int) -> LogScan:
        """The result for a log of so many lines. The scanner cannot be used again."""
        for line, task, raw in self._tail:
            self._line, self._task = line, task
            self._scan(raw)
        self._held_back()
        hits = self._found.finish(self._time)
        begins = self._episodes.begins(hits, self._rules, self._progress.line)
        return self._progress.into(
            LogScan(
                name=self._name,
                source=self._source,
                node=self._node,
                rank=self._rank,
                lines=lines,
                hits=tuple(self._progress.after(hit, begins) for hit in hits),
                workers=tuple(worker for worker in self._workers.finish() if worker.line >= begins),
                episode_line=begins,
                last_line=plain(self._last).strip()[:300],
            )
        )


def _opens(low: str) -> bool:
    """Whether a lower-case line may begin a traceback or a list of failed workers, or belong to one."""
    return 'file "' in low or "traceback (" in low or IGNORED.lower() in low or starts_block(low)
