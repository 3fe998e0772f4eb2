"""Scan a log in one pass: bytes in, rule hits out. Memory use does not grow with the log."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from hpc_launch.recover.evidence import LogScan
from hpc_launch.recover.log_line import parse, plain
from hpc_launch.recover.log_progress import Kind, ProgressMeter
from hpc_launch.recover.rule_hits import RuleHits
from hpc_launch.recover.rulebook import Rulebook
from hpc_launch.recover.timestamps import line_time, year_of
from hpc_launch.recover.torchrun_failures import WorkerBlocks, starts_block
from hpc_launch.recover.tracebacks import Tracebacks

LONGEST_LINE = 1 << 18
"""Bytes after which an unfinished line is scanned in pieces."""

_FORMS = 20_000
"""How many line shapes are remembered before the memory is cleared."""
_OFTEN = 20
"""How many lines of one shape (long numbers ignored) are matched against the rules."""
_PIECES = 200
"""How many states of a progress bar that redraws itself in one line are scanned."""

_DIGITS = b"0123456789"
_LONG_NUMBERS = re.compile(r"\d{4,}|0x[0-9a-fA-F]+|\d+\.\d+")
_NUMBERED = re.compile(rb"^\s{0,6}(\d{1,6}): ", re.MULTILINE)
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
        self._words = rules.words
        self._name, self._source, self._node, self._rank = name, source, node, rank
        self._rest = bytearray()
        self._started = False
        self._numbered: bool | None = None
        self._line = 0
        self._forms: dict[bytes, tuple[int, Kind, bool]] = {}
        self._seen: dict[str, int] = {}
        self._time: float | None = None
        self._year: int | None = None
        self._last = b""
        self._traces = Tracebacks()
        self._progress = ProgressMeter()
        self._workers = WorkerBlocks(name, source)
        self._found = RuleHits(rules, self._traces, self._workers, name=name, source=source, node=node, rank=rank)

    def feed(self, chunk: bytes) -> None:
        """Scan the next chunk, which may end anywhere."""
        if not self._started and chunk:
            self._started = True
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        if b"\n" not in chunk and len(self._rest) + len(chunk) <= LONGEST_LINE:
            self._rest += chunk
            return
        data = bytes(self._rest) + chunk
        *whole, rest = data.split(b"\n")
        self._rest = bytearray(rest)
        if self._numbered is None and whole:
            self._numbered = _looks_numbered(data)
        for line in whole:
            self._line += 1
            if line:
                self._physical(line)
        if len(self._rest) > LONGEST_LINE:
            self._flush()
            self._line -= 1  # the rest belongs to the same line

    def pass_over(self, chunk: bytes) -> None:
        """Count the lines of a chunk that is skipped."""
        if self._rest:
            self._flush()
            self._line -= 1
        self._line += chunk.count(b"\n")

    def finish(self) -> LogScan:
        """The result. The scanner cannot be used again."""
        if self._rest:
            self._flush()
        hits = self._found.finish(self._time)
        return self._progress.into(
            LogScan(
                name=self._name,
                source=self._source,
                node=self._node,
                rank=self._rank,
                lines=self._line,
                hits=tuple(self._progress.after(hit) for hit in hits),
                workers=self._workers.finish(),
                last_line=plain(self._last).strip()[:300],
            )
        )

    def _flush(self) -> None:
        self._line += 1
        rest, self._rest = bytes(self._rest), bytearray()
        self._physical(rest)

    def _physical(self, raw: bytes) -> None:
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
        if look == _SKIP and not busy:
            return
        self._look(text, limited=look == _RULES and not busy)

    def _judged(self, text: str) -> tuple[int, Kind, bool]:
        """Classify the lines of a shape: whether a rule may match, their kind, whether they contain a time."""
        low = text.lower()
        if not text or text.isspace() or text.startswith("+ ") or _SOURCE.match(text):  # "+ ": `set -x` of bash
            return _SKIP, Kind.PLAIN, False
        if 'file "' in low or "traceback (" in low or starts_block(low):
            look = _ALWAYS
        else:
            look = _RULES if any(word in low for word in self._words) else _SKIP
        stamp = line_time(text, self._year or 2000)
        if stamp is not None and self._year is None and line_time(text) is not None:
            self._year = year_of(stamp)
        return look, ProgressMeter.kind(text, low), stamp is not None

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
        line = parse(text, numbered=bool(self._numbered))
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


def _looks_numbered(data: bytes) -> bool:
    """Whether most lines begin with a task number, as `srun --label` writes."""
    lines = [line for line in data[:20000].split(b"\n")[:-1] if line.strip()]
    return len(lines) >= 3 and len(_NUMBERED.findall(data[:20000])) > 0.7 * len(lines)
