"""One pass over a log: bytes in, what rules know of it out. Memory does not grow with the log."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from hpc_launch.recover.evidence import Hit, LogScan
from hpc_launch.recover.lines import FAINT, Line, parse, plain
from hpc_launch.recover.progress import Kind, ProgressMeter
from hpc_launch.recover.rulebook import Rule, Rulebook
from hpc_launch.recover.times import line_time, year_of
from hpc_launch.recover.tracebacks import Tracebacks
from hpc_launch.recover.workers import WorkerBlocks, starts_block

LONGEST_LINE = 1 << 18
"""Bytes after which a line without an end is looked at in pieces."""

_FIRST_HITS = 30
"""So many hits of one rule are kept from the beginning of a log, and as many from its end."""
_FORMS = 20_000
"""So many forms of lines are remembered; then it begins anew."""
_OFTEN = 20
"""So many lines of a form, long numbers apart, are shown to the rules."""
_PIECES = 200
"""Of a bar that was drawn a thousand times over itself so many pictures are looked at."""

_DIGITS = b"0123456789"
_LONG_NUMBERS = re.compile(r"\d{4,}|0x[0-9a-fA-F]+|\d+\.\d+")
_NUMBERED = re.compile(rb"^\s{0,6}(\d{1,6}): ", re.MULTILINE)
_NOTEBOOK = re.compile(r"([A-Za-z_][\w.]{0,120})\s{2,}Traceback \(most recent")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,120}(?:Error|Exception)\b")
_SOURCE = re.compile(
    r"\s{0,12}(?:-{2,10}> ?)?\d{1,6} {1,80}"
    r"(?:#|[frb]?[\"']|(?:raise|from|import|return|if|elif|def|with|for|class|assert) |try:|except\b)"
)
"""A line of the program itself, with its number, as IPython shows it around an exception."""
_SKIP, _RULES, _ALWAYS = 0, 1, 2


class LogScanner:
    """Takes the bytes of one log in pieces; `finish` hands over what was found."""

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
        self._hits: dict[str, tuple[list[Hit], list[Hit]]] = {}
        self._time: float | None = None
        self._year: int | None = None
        self._last = b""
        self._traces = Tracebacks()
        self._progress = ProgressMeter()
        self._workers = WorkerBlocks(name, source)

    def feed(self, chunk: bytes) -> None:
        """The next piece of the log, cut anywhere."""
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
            self._line -= 1  # the rest of it is the same line

    def pass_over(self, chunk: bytes) -> None:
        """Count the lines of a piece that is too much to look at."""
        if self._rest:
            self._flush()
            self._line -= 1
        self._line += chunk.count(b"\n")

    def finish(self) -> LogScan:
        """What was found. The scanner is used up."""
        if self._rest:
            self._flush()
        if all(hit.faint for first, _ in self._hits.values() for hit in first):
            for rank, number, text in self._traces.unfinished():
                if found := self._rules.matches(_named(text)):
                    self._keep(Line(text, rank), text, found, faint=False, number=number)
                else:
                    self._keep_unknown(Line(text, rank), number)
        hits = [hit for first, last in self._hits.values() for hit in (*first, *last)]
        return self._progress.into(
            LogScan(
                name=self._name,
                source=self._source,
                node=self._node,
                rank=self._rank,
                lines=self._line,
                hits=tuple(self._progress.after(hit) for hit in sorted(hits, key=lambda hit: hit.line)),
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
        """Lines of the same form, digits apart, are judged once: a training prints the same few a million times."""
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
        """What lines of this form are: whether rules may know them, their kind, whether they bear a time."""
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
        """The time of this line, else the last one that a line bore."""
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
        if self._traces.takes(line, self._line):
            return
        found = self._rules.matches(line.body)
        if line.body[:1] in " >" and all(rule.role == "context" for rule, _ in found):  # set in, or quoted in a mail
            found = self._rules.matches(line.body.lstrip("> ")) or found
        found = self._with_code(line, found)
        ended = self._traces.ends(line, self._line, known=bool(found))
        place = self._workers.place
        if place is not None:
            if place.terminated:
                return
            line = Line(line.body, place.rank, place.node, line.local_rank)
        if found:
            self._keep(line, text, found, faint=not ended and _is_faint(text, line.body))
        elif ended:
            self._keep_unknown(line, self._line)

    def _with_code(self, line: Line, found: list[tuple[Rule, re.Match[str]]]) -> list[tuple[Rule, re.Match[str]]]:
        """What the raising line of code adds where the exception's own words say nothing in particular."""
        told = found and found[0][0].order < 40 and not found[0][0].id.startswith("checkpoint-")
        if told or not _EXCEPTION.match(line.body):
            return found
        code = self._traces.code(line.rank, self._line)
        if not code:
            return found
        more = [pair for pair in self._rules.matches(f"{line.body} [{code}]") if pair[0].id.startswith("code-")]
        return more + [pair for pair in found if not more or pair[0].order >= 40]

    def _keep(
        self, line: Line, text: str, found: list[tuple[Rule, re.Match[str]]], *, faint: bool, number: int = 0
    ) -> None:
        number = number or self._line
        place = self._workers.place
        special = any(rule.order > 40 and rule.id != "error-word" for rule, _ in found)
        for rule, match in found:
            if rule.order == 40 and special:
                continue  # the program's own exception only where nothing says that it follows from another's end
            groups = match.groupdict()
            rank = groups.get("rank") or groups.get("rank2")
            frame, frame_line = self._traces.frame(line.rank, number)
            self._add(
                Hit(
                    rule=rule.id,
                    file=self._name,
                    line=number,
                    text=text.strip()[:600],
                    node=groups.get("node") or groups.get("at") or line.node or self._node,
                    rank=int(rank) if rank else line.rank if line.rank is not None else self._rank,
                    local_rank=line.local_rank,
                    time=self._time if place is None or place.time is None else place.time,
                    frame=frame,
                    frame_line=frame_line,
                    faint=faint and not rule.firm,
                    source=self._source,
                    blames=groups.get("node"),
                    peer=groups.get("peer") or groups.get("peer2"),
                )
            )

    def _keep_unknown(self, line: Line, number: int) -> None:
        """An exception that no rule knows by its name: the program's own."""
        frame, frame_line = self._traces.frame(line.rank, number)
        self._add(
            Hit(
                rule="py-traceback",
                file=self._name,
                line=number,
                text=line.body.strip()[:600],
                node=line.node or self._node,
                rank=line.rank if line.rank is not None else self._rank,
                time=self._time,
                frame=frame,
                frame_line=frame_line,
                source=self._source,
            )
        )

    def _add(self, hit: Hit) -> None:
        first, last = self._hits.setdefault(hit.rule, ([], []))
        if len(first) < _FIRST_HITS:
            first.append(hit)
            return
        last.append(hit)
        if len(last) > _FIRST_HITS:
            del last[0]


def scan(
    rules: Rulebook,
    name: str,
    chunks: Iterable[bytes],
    *,
    source: int = 0,
    node: str | None = None,
    rank: int | None = None,
) -> LogScan:
    """All of one log."""
    scanner = LogScanner(rules, name, source=source, node=node, rank=rank)
    for chunk in decoded(chunks):
        scanner.feed(chunk)
    return scanner.finish()


def decoded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks as UTF-8 where the first one bears the mark of UTF-16 (logs of Windows tools); others as they are."""
    decoder: codecs.IncrementalDecoder | None = None
    first = True
    for chunk in chunks:
        if first and chunk:
            first = False
            if chunk[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:
                decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", errors="replace")


def _is_faint(text: str, body: str) -> bool:
    """Whether a line takes back what it says; marks of a level stand behind the rank's, too."""
    if body.startswith("FATAL: "):  # Apptainer's last word, whatever it cites
        return False
    return FAINT.search(text) is not None or (body is not text and FAINT.match(body) is not None)


def _named(head: str) -> str:
    """The exception that the head of a notebook's traceback names, as the traceback would end; empty without one."""
    match = _NOTEBOOK.match(head)
    return f"{match[1]}:" if match else ""


def _looks_numbered(data: bytes) -> bool:
    """Whether most lines begin with a task's number, as `srun --label` writes them."""
    lines = [line for line in data[:20000].split(b"\n")[:-1] if line.strip()]
    return len(lines) >= 3 and len(_NUMBERED.findall(data[:20000])) > 0.7 * len(lines)
