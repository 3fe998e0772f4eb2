"""Collect the rule hits of a log: a bounded number per rule, with place, time and source line."""

from __future__ import annotations

import re

from hpc_launch.diagnose.evidence import Hit
from hpc_launch.diagnose.log_line import FAINT, LogLine, line_time, year_of
from hpc_launch.diagnose.rulebook import FailureRule, Rulebook
from hpc_launch.diagnose.torchrun_failures import WorkerBlocks
from hpc_launch.diagnose.tracebacks import Tracebacks

_FIRST_HITS = 30
"""How many hits of one rule are kept from the beginning of a log, and from its end."""
_NOTEBOOK = re.compile(r"([A-Za-z_][\w.]{0,120})\s{2,}Traceback \(most recent")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,120}(?:Error|Exception)\b")

_SUBJECT = re.compile(
    r"(?<!\[)\b(?:[Rr]ank|PE)[ =#]{1,2}(\d{1,6})\b,? "
    r"(?:(?:has|have|had|is|was|seems|appears|to|be) ){0,2}"
    r"(?:timed? ?out|failed|dead|died|crashed|hung|stuck|did not|didn't|does not|not respond\w*|unresponsive|missing|"
    r"lost|unreachable|disconnected|exited|killed|terminated unexpectedly|aborted|stopped|vanished|ran out)\b"
    r"|\b(?:waiting (?:for|on)|no \w+ from|contact (?:to|with)|connection (?:to|with|from)|"
    r"(?:closed|reset|aborted) by|"
    r"time-?out (?:from|on|of)|failed on|died on|error (?:on|from)) "
    r"(?:peer |remote |global )?[Rr]ank[ =#]{1,2}(\d{1,6})\b"
)
"""The rank that a message is about."""


class RuleHits:
    """Takes candidate lines in order; `finish` returns the hits."""

    def __init__(
        self,
        rules: Rulebook,
        traces: Tracebacks,
        workers: WorkerBlocks,
        *,
        name: str,
        source: int,
        node: str | None,
        rank: int | None,
    ) -> None:
        self._rules, self._traces, self._workers = rules, traces, workers
        self._name, self._source, self._node, self._rank = name, source, node, rank
        self._hits: dict[str, tuple[list[Hit], list[Hit]]] = {}
        self.recorded = 0
        """How many hits were recorded, also of those that were not kept."""

    def line(self, line: LogLine, text: str, number: int, time: float | None) -> None:
        """Record the hits of a line. `time`: the latest known time in seconds since the epoch."""
        found = self._rules.matches(line.body)
        if line.body[:1] in " >" and all(rule.role == "context" for rule, _ in found):  # indented or quoted
            found = self._rules.matches(line.body.lstrip("> ")) or found
        found = self._with_code(line, found, number)
        ended = self._traces.ends(line, number, known=bool(found))
        if ended and self._traces.ignored(line):
            return
        place = self._workers.place
        if place is not None:
            if place.terminated:
                return
            line = LogLine(line.body, place.rank, place.node, line.local_rank)
        if found:
            self._keep(line, text, found, number, time, faint=not ended and _is_faint(text, line.body))
        elif ended:
            self._keep_unknown(line, number, time)

    def finish(self, time: float | None) -> list[Hit]:
        """The hits by line, with the last source line of a traceback in which the log breaks off."""
        if all(hit.faint for first, _ in self._hits.values() for hit in first):
            for rank, number, text in self._traces.unfinished():
                if found := self._rules.matches(_named(text)):
                    self._keep(LogLine(text, rank), text, found, number, time, faint=False)
                else:
                    self._keep_unknown(LogLine(text, rank), number, time)
        hits = [hit for first, last in self._hits.values() for hit in (*first, *last)]
        return sorted(hits, key=lambda hit: hit.line)

    def _with_code(
        self, line: LogLine, found: list[tuple[FailureRule, re.Match[str]]], number: int
    ) -> list[tuple[FailureRule, re.Match[str]]]:
        """Hits of the source line that raised the exception, if its message is not specific."""
        told = found and found[0][0].order < 40 and not found[0][0].id.startswith("checkpoint-")
        if told or not _EXCEPTION.match(line.body):
            return found
        code = self._traces.code(line.rank, number)
        if not code:
            return found
        more = [pair for pair in self._rules.matches(f"{line.body} [{code}]") if pair[0].id.startswith("code-")]
        return more + [pair for pair in found if not more or pair[0].order >= 40]

    def _keep(
        self,
        line: LogLine,
        text: str,
        found: list[tuple[FailureRule, re.Match[str]]],
        number: int,
        time: float | None,
        *,
        faint: bool,
    ) -> None:
        place = self._workers.place
        special = any(rule.order > 40 and rule.id != "error-word" for rule, _ in found)
        for rule, match in found:
            if rule.order == 40 and special:
                continue  # an exception of the program itself counts only if it is not a consequence of another failure
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
                    rank=self._subject(text, line, rank),
                    local_rank=line.local_rank,
                    time=time if place is None or place.time is None else place.time,
                    frame=frame,
                    frame_line=frame_line,
                    owner=self._traces.owner(line.rank, number, line.body),
                    faint=faint and not rule.firm,
                    source=self._source,
                    timed=_has_time(text, time) or (place is not None and place.time is not None),
                    blames=groups.get("node"),
                    node_index=int(groups["index"]) if groups.get("index") else None,
                    peer=groups.get("peer") or groups.get("peer2"),
                )
            )

    def _subject(self, text: str, line: LogLine, named: str | None) -> int | None:
        """The rank that a line is about, which is not always the rank that wrote it."""
        if named is None and (match := _SUBJECT.search(text)) is not None:
            named = match[1] or match[2]
        if named is not None:
            return int(named)
        return line.rank if line.rank is not None else self._rank

    def _keep_unknown(self, line: LogLine, number: int, time: float | None) -> None:
        """An exception that no rule knows by name, so it is the program's own."""
        frame, frame_line = self._traces.frame(line.rank, number)
        self._add(
            Hit(
                rule="py-traceback",
                file=self._name,
                line=number,
                text=line.body.strip()[:600],
                node=line.node or self._node,
                rank=line.rank if line.rank is not None else self._rank,
                time=time,
                timed=_has_time(line.body, time),
                frame=frame,
                frame_line=frame_line,
                owner=self._traces.owner(line.rank, number, line.body),
                source=self._source,
            )
        )

    def _add(self, hit: Hit) -> None:
        self.recorded += 1
        first, last = self._hits.setdefault(hit.rule, ([], []))
        if len(first) < _FIRST_HITS:
            first.append(hit)
            return
        last.append(hit)
        if len(last) > _FIRST_HITS:
            del last[0]


def _is_faint(text: str, body: str) -> bool:
    """Whether a line is only a warning; the level may follow the rank prefix."""
    if body.startswith("FATAL: "):  # Apptainer's final error, whatever it quotes
        return False
    return FAINT.search(text) is not None or (body is not text and FAINT.match(body) is not None)


def _has_time(text: str, known: float | None) -> bool:
    """Whether the line itself has a time. `known` gives the year for forms without one."""
    return known is not None and line_time(text, year_of(known)) is not None


def _named(head: str) -> str:
    """The exception named in the header of a notebook's traceback, written as at its end; empty if there is none."""
    match = _NOTEBOOK.match(head)
    return f"{match[1]}:" if match else ""
