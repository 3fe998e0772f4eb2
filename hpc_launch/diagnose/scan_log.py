"""Scan a log in one pass: bytes in, rule hits out. Memory use does not grow with the log."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from hpc_launch.diagnose.evidence import LogScan
from hpc_launch.diagnose.line_kind import shows_progress
from hpc_launch.diagnose.log_line import plain
from hpc_launch.diagnose.regex_literals import smallest
from hpc_launch.diagnose.rulebook import Rulebook, Search, word_search
from hpc_launch.diagnose.scan_line import LineScanner, MatchBudget

LONGEST_LINE = 1 << 18
"""Bytes after which an unfinished line is scanned in pieces."""

_WHOLE = 1 << 18
"""Bytes at the beginning of a log that are scanned line by line."""
_BLOCK = 1 << 20
"""Bytes after them that are searched at once: only lines with a word of a rule, and samples, are read."""
_TAIL = 1 << 18
"""Bytes at the end of a log that are scanned line by line."""
_SAMPLE = 20
"""How many lines at the end of a block are read, so that the progress is known."""
_MOST_READ = 1000
"""Maximum number of lines with a word that are read of a block: a log of nothing but errors repeats itself."""
_RARE = 20
"""So many forms with a word are read although a block has too many others."""
_MANY = 10_000
"""Lines after whose classification only a tenth as many are read of a block."""
_DULL = 50
"""So many lines of one form (digits ignored) in which no rule matched: the others are passed over."""
_NEVER = -(1 << 60)
_FORMS = 20_000
"""How many such forms are remembered."""
_NUMBERS_MATTER = re.compile(rb"(?i)exit|code|status|signal|xid|errno|\berr\b|%")
"""In lines with these words a rule may match one number and not another."""
_DIGITS = b"0123456789"
_LANDMARKS = (
    "traceback (", 'file "', "root cause (first", "failures:", "exitcode", "restart", "slurm_job", "starting job",
    "job start", "cancelled at", "exception ignored in",
)  # fmt: skip
"""Words of lines that matter although no rule matches them."""


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
        budget: MatchBudget | None = None,
    ) -> None:
        self._rules = rules
        self._scanner = LineScanner(rules, name, budget or MatchBudget(), source=source, node=node, rank=rank)
        self._rest = bytearray()
        self._size = 0
        self._found_search: tuple[Search | None] | None = None
        self._started = False
        self._line = 0
        self._dull: set[bytes] = set()
        """Forms of lines to pass over: they have no word of a rule, or no rule matched many of them."""
        self._common: Counter[int] = Counter()
        """How many forms with a word, by its number, were read."""
        self._unmatched: dict[bytes, int] = {}
        """How many lines of a form were read in which no rule matched."""

    @property
    def scanned(self) -> int:
        """How many lines were classified, which takes most of the time."""
        return self._scanner.scanned

    def feed(self, chunk: bytes) -> None:
        """Scan the next chunk, which may end anywhere."""
        if not self._started and chunk:
            self._started = True
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        self._rest += chunk
        self._size += len(chunk)
        search = self._search() if self._size > _WHOLE + _TAIL else None
        if search is not None:
            while len(self._rest) >= _BLOCK + _TAIL:
                self._block(search, _BLOCK)
            return
        end = self._rest.rfind(b"\n") + 1
        if end:
            self._lines(bytes(self._rest[:end]))
            del self._rest[:end]
        if len(self._rest) > LONGEST_LINE:
            self._flush()
            self._line -= 1  # the rest belongs to the same line

    def _lines(self, data: bytes) -> None:
        """Scan whole lines."""
        for line in data.split(b"\n")[:-1]:
            self._line += 1
            if line:
                self._scanner.take(line, self._line)

    def _search(self) -> Search | None:
        if self._found_search is None:
            forms = (word.encode().translate(None, _DIGITS).decode() for word in (*self._rules.words, *_LANDMARKS))
            self._found_search = (word_search(smallest(forms)),)
            # Once a large block was freed, glibc keeps more of what is freed later (mallopt(3), M_MMAP_THRESHOLD): the
            # kernel does not have to map the memory of each block of the log again.
            bytes(_BLOCK << 4)
        return self._found_search[0]

    def _block(self, search: Search, size: int) -> None:
        """Scan the whole lines of the next block: those with a word, what belongs to a traceback, and samples."""
        end = self._rest.rfind(b"\n", 0, size) + 1
        data = bytes(memoryview(self._rest)[: end or size])
        del self._rest[: end or size]
        first = self._line
        if not end:
            self._line += 1
            self._scanner.take(data, self._line)
            self._line = first  # the rest belongs to the same line
            return
        forms = data.translate(None, _DIGITS).split(b"\n")[:-1]
        suspects = self._suspects(search, forms)
        busy = self._scanner.busy(first + 1)
        lines = data.split(b"\n") if suspects or busy else data.rsplit(b"\n", _SAMPLE + 1)
        skipped, samples = len(forms) + 1 - len(lines), len(forms) - _SAMPLE
        at = self._read(lines, 0, first) if busy else 0
        for number in [number for number, form in enumerate(forms) if form in suspects] if suspects else ():
            form = forms[number]
            if at <= number < samples and suspects[form] > 0 and form not in self._dull:
                suspects[form] -= 1
                found = self._scanner.found
                at = self._read(lines, number, first)
                self._remember(form, matched=self._scanner.found > found)
        for number in range(max(at, samples, 0), len(forms)):
            line = lines[number - skipped]
            if self._unmatched.get(forms[number], 0) < _DULL or shows_progress(text := plain(line), text.lower()):
                self._take(line, first + number + 1)
        self._line = first + len(forms)

    def _suspects(self, search: Search, forms: list[bytes]) -> dict[bytes, int]:
        """The forms with a word of a rule, each with how many of its lines to read.

        Those without one are passed over from now on. Once a block has many forms, those with rare words remain.
        """
        fresh = [form for form in dict.fromkeys(forms) if form not in self._dull]
        text = b"\n".join(fresh)
        most = _MOST_READ if self.scanned < _MANY else _MOST_READ // 10
        suspects: set[bytes] = set()
        crowded, end = False, -1
        for word, position, _ in search(text):
            if position <= end:
                continue
            if len(suspects) >= most and self._common[word] >= _RARE:
                crowded = True
                continue
            self._common[word] += 1
            start, end = text.rfind(b"\n", 0, position) + 1, text.find(b"\n", position)
            end = end if end >= 0 else len(text)
            suspects.add(text[start:end])
        if not crowded:
            if len(self._dull) + len(fresh) > _FORMS:
                self._dull.clear()
            self._dull.update(form for form in fresh if form not in suspects)
        return dict.fromkeys(suspects, most // len(suspects) + 1) if suspects else {}

    def _remember(self, form: bytes, *, matched: bool) -> None:
        """Count a line of this form in which no rule matched, as far as the numbers in it do not matter."""
        if len(self._unmatched) >= _FORMS:
            self._unmatched.clear()
        never = matched or _NUMBERS_MATTER.search(form)
        self._unmatched[form] = count = _NEVER if never else self._unmatched.get(form, 0) + 1
        if count >= _DULL:
            self._dull.add(form)

    def _read(self, lines: list[bytes], at: int, first: int) -> int:
        """Scan a line, and those after it that may belong to a traceback. Returns where it stopped."""
        while True:
            self._take(lines[at], first + at + 1)
            at += 1
            if at >= len(lines) - 1 or not self._scanner.busy(first + at + 1):
                return at

    def _take(self, line: bytes, number: int) -> None:
        if line:
            self._scanner.take(line, number)

    def pass_over(self, chunk: bytes) -> None:
        """Count the lines of a chunk that is skipped."""
        self._drain()
        if self._rest:
            self._flush()
            self._line -= 1
        self._line += chunk.count(b"\n")

    def finish(self) -> LogScan:
        """The result. The scanner cannot be used again."""
        self._drain()
        if self._rest:
            self._flush()
        return self._scanner.finish(self._line)

    def _drain(self) -> None:
        """Scan the whole lines that were held back."""
        if self._found_search and self._found_search[0] and len(self._rest) > _TAIL:
            self._block(self._found_search[0], len(self._rest) - _TAIL)
        end = self._rest.rfind(b"\n") + 1
        self._lines(bytes(self._rest[:end]))
        del self._rest[:end]

    def _flush(self) -> None:
        self._line += 1
        rest, self._rest = bytes(self._rest), bytearray()
        self._scanner.take(rest, self._line)


def scan(
    rules: Rulebook,
    name: str,
    chunks: Iterable[bytes],
    *,
    source: int = 0,
    node: str | None = None,
    rank: int | None = None,
) -> LogScan:
    """Scan a whole log."""
    scanner = LogScanner(rules, name, source=source, node=node, rank=rank)
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
