"""Scan a log in one pass: bytes in, rule hits out. Memory use does not grow with the log."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from hpc_launch.recover.episodes import Episodes
from hpc_launch.recover.evidence import LogScan
from hpc_launch.recover.log_line import parse, plain
from hpc_launch.recover.log_progress import Kind, ProgressMeter
from hpc_launch.recover.rule_hits import RuleHits
from hpc_launch.recover.rulebook import Rulebook
from hpc_launch.recover.timestamps import line_time, year_of
from hpc_launch.recover.torchrun_failures import WorkerBlocks, starts_block
from hpc_launch.recover.tracebacks import Tracebacks
from hpc_launch.recover.word_search import Search, word_search

LONGEST_LINE = 1 << 18
"""Bytes after which an unfinished line is scanned in pieces."""

_WHOLE = 1 << 20
"""Bytes at the beginning of a log that are scanned line by line."""
_BLOCK = 1 << 20
"""Bytes after them that are searched at once: only lines with a word of a rule, and samples, are read."""
_TAIL = 1 << 19
"""Bytes at the end of a log that are scanned line by line."""
_SAMPLE = 20
"""How many lines at both ends of a block are read, so that the progress is known."""
_MOST_READ = 1000
"""Maximum number of lines with a word that are read of a block: a log of nothing but errors repeats itself."""
_LANDMARKS = (
    "traceback (", 'file "', "root cause (first", "failures:", "exitcode", "restart", "slurm_job", "starting job",
    "job start", "cancelled at", "exception ignored in",
)  # fmt: skip
"""Words of lines that matter although no rule matches them."""

_FORMS = 20_000
"""How many line shapes are remembered before the memory is cleared."""
_OFTEN = 20
"""How many lines of one shape (long numbers ignored) are matched against the rules."""
_PIECES = 200
"""How many states of a progress bar that redraws itself in one line are scanned."""

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


class LogScanner:
    """Takes the bytes of one log in chunks; `finish` returns the result."""

    def __init__(
        self, rules: Rulebook, name: str, *, source: int = 0, node: str | None = None, rank: int | None = None
    ) -> None:
        self._rules = rules
        self._name, self._source, self._node, self._rank = name, source, node, rank
        self._rest = bytearray()
        self._size = 0
        self._found_search: tuple[Search | None] | None = None
        self._started = False
        self._labelled = self._unlabelled = 0
        self._task: int | None = None
        self._line = 0
        self._forms: dict[bytes, tuple[int, int, bool]] = {}
        self._seen: dict[str, int] = {}
        self._time: float | None = None
        self._year: int | None = None
        self._last = b""
        self._traces = Tracebacks()
        self._progress = ProgressMeter()
        self._episodes = Episodes()
        self._workers = WorkerBlocks(name, source)
        self._found = RuleHits(rules, self._traces, self._workers, name=name, source=source, node=node, rank=rank)

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
                self._physical(line)

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
            self._physical(data)
            self._line -= 1  # the rest belongs to the same line
            return
        data = bytes(self._rest[:end])
        del self._rest[:end]
        last = end
        for _ in range(_SAMPLE + 1):
            last = max(data.rfind(b"\n", 0, last), 0)
        last = last + 1 if last else 0
        at = self._read(data, 0, _SAMPLE)
        most = _MOST_READ
        for position in search(data):
            if position < at:
                continue
            if position >= last or most == 0:
                break
            most -= 1
            start = data.rfind(b"\n", at, position) + 1 or at
            self._line += data.count(b"\n", at, start)
            at = self._read(data, start, 1)
        if at < last:
            self._line += data.count(b"\n", at, last)
            at = last
        self._lines(data[at:])

    def _read(self, data: bytes, at: int, lines: int) -> int:
        """Scan some lines, and those that may belong to a traceback that is open then. Returns where it stopped."""
        while at < len(data) and (lines > 0 or self._traces.busy(self._line + 1) or self._workers.place is not None):
            end = data.find(b"\n", at)
            self._line += 1
            if end > at:
                self._physical(data[at:end])
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
        hits = self._found.finish(self._time)
        begins = self._episodes.begins(hits, self._rules, self._progress.line)
        return self._progress.into(
            LogScan(
                name=self._name,
                source=self._source,
                node=self._node,
                rank=self._rank,
                lines=self._line,
                hits=tuple(self._progress.after(hit, begins) for hit in hits),
                workers=tuple(worker for worker in self._workers.finish() if worker.line >= begins),
                episode_line=begins,
                last_line=plain(self._last).strip()[:300],
            )
        )

    def _drain(self) -> None:
        """Scan the whole lines that were held back."""
        end = self._rest.rfind(b"\n") + 1
        self._lines(bytes(self._rest[:end]))
        del self._rest[:end]

    def _flush(self) -> None:
        self._line += 1
        rest, self._rest = bytes(self._rest), bytearray()
        self._physical(rest)

    def _physical(self, raw: bytes) -> None:
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
        """Classify lines of the same shape (digits ignored) once: a training prints the same few millions of times."""
        self._last = raw
        busy = self._traces.busy(self._line) or self._workers.place is not None
        form = raw[:1000].translate(None, _DIGITS)
        known = None if busy else self._forms.get(form)
        if known is not None and known[0] == _SKIP and known[1] == Kind.PLAIN and not known[2]:
            self._progress.see(Kind.PLAIN, "", self._line, None)
            return
        text = plain(raw)
        if known is None:
            known = self._judged(text)
            if len(self._forms) >= _FORMS:
                self._forms.clear()
            self._forms[form] = known
        look, kind, dated = known
        self._progress.see(kind, text, self._line, self._now(text) if dated else None)
        if kind & Kind.EPISODE:
            self._episodes.see(text, self._line)
        if look == _SKIP and not busy:
            return
        self._look(text, limited=look == _RULES and not busy)

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

    def _judged(self, text: str) -> tuple[int, int, bool]:
        """Classify the lines of a shape: whether a rule may match, their kind, whether they contain a time."""
        low = text.lower()
        if not text or text.isspace() or text.startswith("+ ") or _SOURCE.match(text):  # "+ ": `set -x` of bash
            return _SKIP, Kind.PLAIN, False
        if 'file "' in low or "traceback (" in low or "exception ignored in" in low or starts_block(low):
            look = _ALWAYS
        else:
            look = _RULES if self._rules.may_match(low) else _SKIP
        stamp = line_time(text, self._year or 2000)
        if stamp is not None and self._year is None and line_time(text) is not None:
            self._year = year_of(stamp)
        return look, ProgressMeter.kind(parse(text).body, low), stamp is not None

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
        line = parse(text, self._task)
        self._workers.see(line.body, self._line)
        if not self._traces.takes(line, self._line):
            self._found.line(line, text, self._line, self._time)


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
