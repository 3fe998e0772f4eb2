"""Scan a log in one pass: bytes in, observations out (rule hits, failed workers, progress).

One budget limits the work, and memory use does not grow with the log.
The beginning and the end of a log are read line by line. Between them, only the lines with a word of a rule are read,
what follows them in a traceback, and samples that show the progress. A word is used up after many lines.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from hpc_launch.diagnose.evidence import LogScan
from hpc_launch.diagnose.furthest_step import ProgressMeter
from hpc_launch.diagnose.line_kind import Episodes, Kind, line_kind
from hpc_launch.diagnose.log_line import line_pattern, line_time, parse, plain, year_of
from hpc_launch.diagnose.rule_hits import RuleHits, Tracebacks, WorkerBlocks
from hpc_launch.diagnose.rulebook import DIGITS, LANDMARKS, Rulebook

UNITS = 100_000_000
"""The work for one log, about five seconds: characters that expressions search. Ordinary logs take a tenth of it."""
LINE_UNITS = 1000
"""What a line takes before any expression searches it."""
WORD_UNITS = 20
"""What a word of a rule takes where it is found."""

ENDS = 1 << 18
"""Bytes at the beginning and at the end of a log that are read line by line."""
BLOCK = 1 << 20
"""Bytes between them that are searched at once."""
LAST_LINES = 100
"""So many lines at the end of a log are matched against the rules in any case."""
USED_UP = 1000
"""So many lines with a word are matched: a log of nothing but errors repeats itself."""
_SAMPLE = 20
"""How many lines at the end of a block are read, so that the progress is known."""
_FORMS = 20_000
"""How many forms of lines (digits ignored) are remembered before the memory is cleared."""
_FORM = 1000
"""Bytes of the longest form that is remembered."""
_PIECES = 200
"""How many states of a progress bar that redraws itself in one line are read."""

_LABEL = re.compile(rb"[ ]{0,6}(\d{1,6}): ?")
"""The task number that `srun --label` writes before each line."""
_NO_MESSAGE = line_pattern("no_message")
"""Blank lines, commands, and the numbered source lines that IPython prints around an exception."""


class LogScanner:
    """Takes the bytes of one log in chunks; `finish` returns the result."""

    def __init__(
        self,
        rules: Rulebook,
        name: str,
        *,
        source: int = 0,
        node: str | None = None,
        rank: int | None = None,
        units: int = UNITS,
    ) -> None:
        self._rules = rules
        self.lines = LineReader(rules, LogScan(name, source, node, rank), units)
        self._rest = bytearray()
        self._size = self._line = 0
        self._passed: set[bytes] = set()
        """Forms of lines without a word of a rule that is not used up."""
        self._read: Counter[int] = Counter()
        """How many lines with a word, by its number, were matched."""

    def feed(self, chunk: bytes) -> None:
        """Scan the next chunk, which may end anywhere."""
        self._rest += chunk
        while len(self._rest) >= (BLOCK if self._size else ENDS) + ENDS:
            self._scan(BLOCK if self._size else ENDS)

    def pass_over(self, chunk: bytes) -> None:
        """Count the lines of a chunk that is skipped."""
        while self._rest:
            self._scan(len(self._rest))
        self._line += chunk.count(b"\n")

    def finish(self) -> LogScan:
        """The result. The scanner cannot be used again."""
        if len(self._rest) > ENDS:
            self._scan(len(self._rest) - ENDS)
        self._scan(len(self._rest), last=True)
        return self.lines.finish(self._line)

    def _scan(self, size: int, *, last: bool = False) -> None:
        """Scan the whole lines in the next `size` bytes; all of them if there is no end of a line."""
        end = size if last else self._rest.rfind(b"\n", 0, size) + 1 or size
        data = bytes(memoryview(self._rest)[:end])
        del self._rest[:end]
        if not self._size:
            data = data.removeprefix(codecs.BOM_UTF8)
        all_of_them = last or not self._size
        self._size += end
        forms = data.translate(None, DIGITS).split(b"\n")
        ended = not forms[-1]
        if ended:
            del forms[-1]
        count, first = len(forms), self._line + 1
        words = self._words(forms) if self.lines.left > 0 else {}
        busy = self.lines.busy(first)
        wanted: Iterable[int] = range(count)
        if not all_of_them:
            wanted = [number for number, form in enumerate(forms) if form in words] if words else []
            wanted = [*([0] if busy else []), *wanted, *range(max(count - _SAMPLE, 0), count)]
        only_samples = not (all_of_them or words or busy)
        lines = data.rsplit(b"\n", _SAMPLE + ended) if only_samples else data.split(b"\n")
        skipped, always = count + ended - len(lines), count - LAST_LINES if last else count
        at = 0
        for number in wanted:
            at = max(at, number)
            while at == number or (at < count and self.lines.busy(first + at)):
                look = at >= always or self._counts(words, forms[at])
                self.lines.take(lines[at - skipped], first + at, look=look)
                at += 1
        self._line += count - (not ended and not last)  # the rest belongs to the same line

    def _words(self, forms: list[bytes]) -> dict[bytes, list[int]]:
        """The forms with a word of a rule that is not used up, each with the numbers of its words."""
        fresh = [form for form in dict.fromkeys(forms) if form not in self._passed]
        text = b"\n".join(fresh)
        found = list(self._rules.words_in(text.lower()))
        self.lines.left -= WORD_UNITS * len(found)
        words: dict[bytes, list[int]] = {}
        used_up = {word for word, count in self._read.items() if count >= USED_UP}
        for word, position in found:
            if word not in used_up:
                end = text.find(b"\n", position)
                words.setdefault(text[text.rfind(b"\n", 0, position) + 1 : end if end >= 0 else None], []).append(word)
        if len(self._passed) + len(fresh) > _FORMS:
            self._passed.clear()
        self._passed.update(form for form in fresh if form not in words and len(form) <= _FORM)
        return words

    def _counts(self, words: dict[bytes, list[int]], form: bytes) -> bool:
        """Count the words of a line; false if all of them, or the whole budget, are used up."""
        numbers = words.get(form)
        if numbers is None or self.lines.left <= 0:
            return False
        count = min(self._read[number] for number in numbers)
        self._read.update(number for number in numbers if number >= len(LANDMARKS))
        return count < USED_UP


class LineReader:
    """Takes the lines of one log in order; `finish` returns the result."""

    def __init__(self, rules: Rulebook, log: LogScan, units: int) -> None:
        self.left, self.matched = units, 0
        """How much of the work is left, and how many lines were matched against the rules, which takes most of it."""
        self._rules, self._log = rules, log
        self._labelled = self._unlabelled = 0
        self._task: int | None = None
        self._forms: dict[bytes, tuple[int, bool, bool]] = {}
        self._time: float | None = None
        self._year: int | None = None
        self._last = b""
        self._traces = Tracebacks()
        self._progress = ProgressMeter()
        self._episodes = Episodes()
        self._workers = WorkerBlocks(log)
        self._found = RuleHits(rules, self._traces, self._workers, log)

    def busy(self, number: int) -> bool:
        """Whether a line must be read because it may continue a traceback or a list of failed workers."""
        return self.left > 0 and (self._traces.busy(number) or self._workers.open is not None)

    def take(self, raw: bytes, number: int, *, look: bool) -> None:
        """Read the line with this number; with `look`, match it against the rules."""
        raw = self._without_label(raw)
        pieces = [piece for piece in raw.split(b"\r") if piece]
        for piece in pieces if len(pieces) <= _PIECES else pieces[: _PIECES // 2] + pieces[-_PIECES // 2 :]:
            self._piece(piece, number, look=look)

    def _without_label(self, raw: bytes) -> bytes:
        """The line without its task number, in a log where most lines have one."""
        match = _LABEL.match(raw) if raw else None
        self._task = None
        if match is None:
            self._unlabelled += bool(raw)
            return raw
        self._labelled += 1
        if self._labelled < 2 * self._unlabelled:
            return raw
        self._task = int(match[1])
        return raw[match.end() :]

    def _piece(self, raw: bytes, number: int, *, look: bool) -> None:
        """Lines of one form are classified once: a training prints the same few millions of times."""
        self._last, text = raw, plain(raw)
        form = raw[:_FORM].translate(None, DIGITS)
        known = self._forms.get(form)
        if known is None:
            if len(self._forms) >= _FORMS:
                self._forms.clear()
            known = self._forms[form] = self._classified(text)
        kind, dated, silent = known
        stamp = line_time(text, self._year) if dated else None
        self._time = self._time if stamp is None else stamp
        self._progress.see(kind, text, number, self._time if dated else None)
        if kind & Kind.EPISODE:
            self._episodes.see(text, number)
        if self.busy(number) or (look and not silent):
            self._look(text, number)

    def _classified(self, text: str) -> tuple[int, bool, bool]:
        """The kind of the lines of a form, whether they contain a time, and whether they are no message."""
        if _NO_MESSAGE.match(text):
            return Kind.PLAIN, False, True
        stamp = line_time(text, self._year or 2000)
        if stamp is not None and self._year is None and line_time(text) is not None:
            self._year = year_of(stamp)
        low = text.lower()
        is_frame = low.lstrip().startswith('file "')
        return (Kind.PLAIN if is_frame else line_kind(parse(text).body, low)), stamp is not None, False

    def _look(self, text: str, number: int) -> None:
        self.matched += 1
        before = self._rules.searched
        line = parse(text, self._task)
        self._workers.see(line.body, number)
        if not self._traces.takes(line, number):
            self._found.line(line, text, number, self._time)
        self.left -= LINE_UNITS + self._rules.searched - before

    def finish(self, lines: int) -> LogScan:
        """The result for a log of so many lines. The reader cannot be used again."""
        hits = self._found.finish(self._time)
        begins = self._episodes.begins(hits, self._rules, self._progress.line)
        return self._progress.into(
            replace(
                self._log,
                lines=lines,
                hits=tuple(self._progress.after(hit, begins) for hit in hits),
                workers=tuple(worker for worker in self._workers.finish() if worker.line >= begins),
                episode_line=begins,
                last_line=plain(self._last).strip()[:300],
            )
        )


def scan(rules: Rulebook, name: str, chunks: Iterable[bytes], **place: int | str | None) -> LogScan:
    """Scan a whole log. `place`: as `LogScanner` takes it."""
    scanner = LogScanner(rules, name, **place)  # type: ignore[arg-type]
    for chunk in decoded(chunks):
        scanner.feed(chunk)
    return scanner.finish()


def decoded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks converted to UTF-8 if the first one has a UTF-16 byte order mark; otherwise unchanged."""
    decoder: codecs.IncrementalDecoder | None = None
    first = True
    for chunk in chunks:
        if first and chunk:
            first = False
            if chunk[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:
                decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", errors="replace")
