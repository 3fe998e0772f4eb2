"""Collect the rule hits of a log: a bounded number per rule, with place, time and source line."""

from __future__ import annotations

from hpc_launch.diagnose.evidence import Hit
from hpc_launch.diagnose.log_line import FAINT, LogLine, line_time, year_of
from hpc_launch.diagnose.rulebook import Rulebook
from hpc_launch.diagnose.torchrun_failures import WorkerBlocks
from hpc_launch.diagnose.tracebacks import Tracebacks

_FIRST_HITS = 30
"""How many hits of one rule are kept from the beginning of a log, and from its end."""


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

    def line(self, line: LogLine, text: str, number: int, time: float | None) -> None:
        """Record the hits of a line. `time`: the latest known time in seconds since the epoch."""
        found = self._rules.matches(line.body)
        if line.body[:1] in " >" and all(rule.role == "context" for rule, _ in found):  # indented or quoted
            found = self._rules.matches(line.body.lstrip("> ")) or found
        ended = self._traces.ends(line, number, known=bool(found))
        if ended and self._traces.ignored(line):
            return
        place = self._workers.place
        if place is not None:
            if place.terminated:
                return
            line = LogLine(line.body, place.rank, place.node)
        faint = not ended and _is_faint(text, line.body)
        special = any(rule.order > 40 and rule.id != "error-word" for rule, _ in found)
        for rule, match in found:
            # An exception of the program itself counts only if it is not a consequence of another failure.
            if rule.order != 40 or not special:
                self._add(rule.id, match.groupdict(), line, number, time, text=text, faint=faint and not rule.firm)
        if ended and not found:
            # An exception that no rule knows by name, so it is the program's own.
            self._add("py-traceback", {}, line, number, time)

    def finish(self, time: float | None) -> list[Hit]:
        """The hits, by line; with the tracebacks in which the log breaks off, if nothing else says why."""
        if all(hit.faint for first, _ in self._hits.values() for hit in first):
            for rank, number in self._traces.unfinished:
                self._add("py-traceback", {}, LogLine("Traceback (most recent call last):", rank), number, time)
        hits = [hit for first, last in self._hits.values() for hit in (*first, *last)]
        return sorted(hits, key=lambda hit: hit.line)

    def _add(
        self,
        rule: str,
        groups: dict[str, str | None],
        line: LogLine,
        number: int,
        time: float | None,
        *,
        text: str = "",
        faint: bool = False,
    ) -> None:
        text, place = text or line.body, self._workers.place
        known = place.time if place is not None else None
        rank = groups.get("rank") or groups.get("rank2")
        frame, frame_line = self._traces.frame(line.rank, number)
        hit = Hit(
            rule=rule,
            file=self._name,
            line=number,
            text=text.strip()[:600],
            node=groups.get("node") or groups.get("at") or line.node or self._node,
            rank=int(rank) if rank else line.rank if line.rank is not None else self._rank,
            time=time if known is None else known,
            frame=frame,
            frame_line=frame_line,
            owner=self._traces.owner(line.rank, number, line.body),
            faint=faint,
            source=self._source,
            timed=_has_time(text, time) or known is not None,
            blames=groups.get("node"),
            node_index=int(index) if (index := groups.get("index")) else None,
            peer=groups.get("peer") or groups.get("peer2"),
        )
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
