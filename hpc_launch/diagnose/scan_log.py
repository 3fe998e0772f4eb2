"""Scan a log in one pass: bytes in, rule hits out. Memory use does not grow with the log."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from hpc_launch.diagnose.evidence import LogScan
from hpc_launch.diagnose.rulebook import Rulebook, Search, word_search
from hpc_launch.diagnose.scan_line import LineScanner, MatchBudget

LONGEST_LINE = 1 << 18
"""Bytes after which an unfinished line is scanned in pieces."""

_WHOLE = 1 << 19
"""Bytes at the beginning of a log that are scanned line by line."""
_BLOCK = 1 << 20
"""Bytes after them that are searched at once: only lines with a word of a rule, and samples, are read."""
_TAIL = 1 << 19
"""Bytes at the end of a log that are scanned line by line."""
_SAMPLE = 20
"""How many lines at both ends of a block are read, so that the progress is known."""
_MOST_READ = 1000
"""Maximum number of lines with a word that are read of a block: a log of nothing but errors repeats itself."""
_MANY = 10_000
"""Lines after whose classification only a tenth as many are read of a block."""
_MOST_COMPARED = 800
"""Maximum number of lines of a block that are compared with known forms."""
_DULL = 50
"""So many lines of one form (digits ignored) in which no rule matched: the others are passed over."""
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
        self._dull: dict[bytes, int] = {}

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
                self._block(search)
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
            self._found_search = (word_search([*self._rules.words, *_LANDMARKS]),)
        return self._found_search[0]

    def _block(self, search: Search) -> None:
        """Scan the whole lines of the next block: those with a word, what belongs to a traceback, and samples."""
        end = self._rest.rfind(b"\n", 0, _BLOCK) + 1
        if not end:
            data = bytes(self._rest[:_BLOCK])
            del self._rest[:_BLOCK]
            self._line += 1
            self._scanner.take(data, self._line)
            self._line -= 1  # the rest belongs to the same line
            return
        data = bytes(self._rest[:end])
        del self._rest[:end]
        last = end
        for _ in range(_SAMPLE + 1):
            last = max(data.rfind(b"\n", 0, last), 0)
        last = last + 1 if last else 0
        at = self._read(data, 0, _SAMPLE)
        most, compared = (_MOST_READ if self.scanned < _MANY else _MOST_READ // 10), _MOST_COMPARED
        for position in search(data):
            if position < at:
                continue
            if position >= last or most == 0 or compared == 0:
                break
            start = data.rfind(b"\n", at, position) + 1 or at
            form = data[start : data.find(b"\n", position)].translate(None, _DIGITS)
            if self._dull.get(form, 0) >= _DULL:
                compared -= 1
                continue
            most -= 1
            self._line += data.count(b"\n", at, start)
            found = self._scanner.found
            at = self._read(data, start, 1)
            self._remember(form, dull=self._scanner.found == found)
        if at < last:
            self._line += data.count(b"\n", at, last)
            at = last
        self._lines(data[at:])

    def _remember(self, form: bytes, *, dull: bool) -> None:
        """Count a line of this form in which no rule matched, as far as the numbers in it do not matter."""
        if len(self._dull) >= _FORMS:
            self._dull.clear()
        known = self._dull.get(form)
        if known is None:
            known = -(1 << 60) if _NUMBERS_MATTER.search(form) else 0
        self._dull[form] = known + 1 if dull else -(1 << 60)

    def _read(self, data: bytes, at: int, lines: int) -> int:
        """Scan some lines, and those that may belong to a traceback that is open then. Returns where it stopped."""
        while at < len(data) and (lines > 0 or self._scanner.busy(self._line + 1)):
            end = data.find(b"\n", at)
            self._line += 1
            if end > at:
                self._scanner.take(data[at:end], self._line)
            at, lines = end + 1, lines - 1
        return at

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
