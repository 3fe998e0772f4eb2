"""Collect the rule hits of a log: a bounded number per rule, with place, time and the code that raised an exception.

Python tracebacks of many ranks are followed; meanings.py tells what an exception means there. torchrun's lists of
failed workers are read, too; they and its error files have possible root causes.
"""

from __future__ import annotations

import math
import re

from msgspec.structs import replace

from hpc_launch.diagnose.diagnosis import Candidate
from hpc_launch.diagnose.evidence import Evidence, Hit, LogScan, WorkerFailure
from hpc_launch.diagnose.log_candidates import is_denied, of_hit
from hpc_launch.diagnose.log_line import FAINT, LogLine, line_time, year_of
from hpc_launch.diagnose.meanings import TERMINATED, code_of, owner
from hpc_launch.diagnose.rulebook import Rulebook

_FRAME = re.compile(r'^\s*File "[^"]{1,400}", line \d+')
_EXCEPTION = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+(?:: .*)?$|[A-Z]\w+: .*$")
_INSIDE = (" ", "\t", "File ", "~", "^", "...", "[Previous line repeated", "|", "+")
IGNORED = "Exception ignored in"
"""Python prints this before the traceback of an exception that it cannot raise, as in a destructor."""
_LONGEST = 400
"""Lines after which an unfinished traceback is dropped."""
_FRAMES = 8
"""How many of the innermost frames are kept."""
_NEAR = 12
"""Lines between the last frame and its exception, at most."""


class Tracebacks:
    """Tracks the open traceback of each rank."""

    def __init__(self) -> None:
        self.unfinished: dict[int | None, int] = {}
        """The lines of the tracebacks that have not ended, by rank."""
        self._frames: dict[int | None, tuple[str, int]] = {}
        self._ignored: dict[int | None, int] = {}
        self._opened = 0
        self._frame_line = -1
        self._stack: dict[int | None, list[str]] = {}

    def busy(self, number: int) -> bool:
        """Whether this line may belong to an open traceback."""
        return (bool(self.unfinished) and number <= self._opened + _LONGEST) or self._frame_line == number - 1

    def takes(self, line: LogLine, number: int) -> bool:
        """Whether the line is the header, a frame or a source line of a traceback, which rules must ignore."""
        if IGNORED in line.body:
            self._ignored[line.rank] = number
        if "Traceback (most recent" in line.body:
            self._ignored[line.rank] = number if self._ignored.get(line.rank, -2) == number - 1 else -2
            self.unfinished[line.rank] = number
            self._opened = number
            self._stack[line.rank] = []
            return True
        if _FRAME.match(line.body):
            self._frames[line.rank] = (line.body.strip()[:400], number)
            self._frame_line = number
            stack, frame = self._stack.setdefault(line.rank, []), line.body.strip()[:400]
            if frame not in stack:  # two ranks may write the same
                stack.append(frame)
                del stack[:-_FRAMES]
            return True
        return self._frame_line == number - 1 and line.body.startswith("  ")

    def ends(self, line: LogLine, number: int, *, known: bool) -> bool:
        """Whether the line is the exception that ends a traceback. `known`: a rule matches it."""
        begun = self.unfinished.get(line.rank)
        if begun is None or line.body.startswith(_INSIDE):
            return False
        if not known and not _EXCEPTION.match(line.body):
            if number - begun > _LONGEST:
                del self.unfinished[line.rank]
            return False  # torn: lines of several ranks may be interleaved
        del self.unfinished[line.rank]
        return True

    def ignored(self, line: LogLine) -> bool:
        """Whether Python reported the exception of the last traceback and went on."""
        return self._ignored.get(line.rank, -2) >= 0

    def frame(self, rank: int | None, number: int) -> tuple[str, int]:
        """The nearest frame before a line, with its line number; empty if there is none."""
        text, at = self._frames.get(rank, ("", 0))
        return (text, at) if 0 <= number - at <= _NEAR else ("", 0)

    def owner(self, rank: int | None, number: int, exception: str) -> str:
        """The failure class that the frames of the exception show; empty if they show none."""
        _, at = self._frames.get(rank, ("", 0))
        return owner(self._stack.get(rank, ()), exception) if 0 <= number - at <= _NEAR else ""


_BY_DEEPSPEED = re.compile(r"(?:\[[A-Z]{4,8}\] )?\[(?:launch|runner|multinode_runner)\.py:\d+:\w+\] ")
"""How the lines of its launchers begin, after the time (deepspeed/utils/logging.py)."""
_RANGE = re.compile(r"\[(\d+)[^\]]*\]")
"""Several nodes of srun, of which the first has the first task."""
_FIRST_HITS = 30
"""How many hits of one rule are kept from the beginning of a log, and from its end."""


class RuleHits:
    """Takes candidate lines in order; `finish` returns the hits."""

    def __init__(self, rules: Rulebook, traces: Tracebacks, workers: WorkerBlocks, log: LogScan) -> None:
        self._rules, self._traces, self._workers, self._log = rules, traces, workers, log
        self._hits: dict[str, tuple[list[Hit], list[Hit]]] = {}

    def line(self, line: LogLine, text: str, number: int, time: float | None) -> None:
        """Record the hits of a line. `time`: the latest known time in seconds since the epoch."""
        found = self._rules.matches(line.body)
        if line.body[:1] in " >" and all(rule.role == "context" for rule, _ in found):  # indented or quoted
            found = self._rules.matches(line.body.lstrip("> ")) or found
        if _BY_DEEPSPEED.match(line.body):  # it prints the whole command of a process, in which no rule may see a cause
            found = [(rule, match) for rule, match in found if "DeepSpeed" in rule.source]
        ended = self._traces.ends(line, number, known=bool(found))
        if ended and self._traces.ignored(line):
            return
        worker = self._workers.open
        if worker is not None:
            if worker.exit_code == TERMINATED:  # torchrun ended this worker itself, so its error is not a cause
                return
            line = LogLine(line.body, worker.rank, worker.node)
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
            for rank, number in self._traces.unfinished.items():
                self._add("py-traceback", {}, LogLine("Traceback (most recent call last):", rank), number, time)
        hits = [hit for first, last in self._hits.values() for hit in (*first, *last)]
        if self._log.node is None and all(hit.rank is None for hit in hits):  # then nothing shows another node
            hits = [replace(hit, rank=hit.local_rank) for hit in hits]
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
        text, worker = text or line.body, self._workers.open
        known = worker.time if worker is not None else None
        rank = groups.get("rank") or groups.get("rank2")
        frame, frame_line = self._traces.frame(line.rank, number)
        how, local = groups.get("how"), groups.get("local")
        node = groups.get("node") or groups.get("at") or line.node or self._log.node
        hit = Hit(
            rule=rule,
            file=self._log.name,
            line=number,
            text=text.strip()[:600],
            node=_RANGE.sub(r"\1", node) if node else None,
            rank=int(rank) if rank else line.rank if line.rank is not None else self._log.rank,
            time=time if known is None else known,
            frame=frame,
            frame_line=frame_line,
            owner=self._traces.owner(line.rank, number, line.body),
            faint=faint,
            source=self._log.source,
            timed=_has_time(text, time) or known is not None,
            blames=groups.get("node"),
            node_index=int(index) if (index := groups.get("index")) else None,
            peer=groups.get("peer") or groups.get("peer2"),
            local_rank=int(local) if local else None,
            code=self._rules.rules[rule].code if how is None else code_of(how),
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


_FIELD = re.compile(r"\s{0,6}(time|host|rank|exitcode|error_file|traceback)\s{0,6}: ?(.*)")
_RANK = re.compile(r"(\d+) \(local_rank: \d+\)")
_CODE = re.compile(r"(-?\d+)")
_MOST = 4096
"""How many entries of a log are kept, one per worker."""


class WorkerBlocks:
    """Takes every line of a log once, without its rank prefix."""

    def __init__(self, log: LogScan) -> None:
        self._log = log
        self._found: list[WorkerFailure] = []
        self._fields: dict[str, str] = {}
        self._line = self._exit_line = 0
        self._root = False

    @property
    def open(self) -> WorkerFailure | None:
        """The entry that is being read, as far as it is known; None outside the list."""
        if not self._fields:
            return None
        rank = _RANK.match(self._fields.get("rank", ""))
        code = _CODE.match(self._fields.get("exitcode", ""))
        return WorkerFailure(
            file=self._log.name,
            line=self._line,
            rank=int(rank[1]) if rank else None,
            node=self._fields.get("host") or None,
            time=line_time(self._fields["time"]),
            exit_code=int(code[1]) if code else None,
            exit_line=self._exit_line,
            said_root=self._root,
            source=self._log.source,
        )

    def see(self, body: str, line: int) -> None:
        """Read one line."""
        match = _FIELD.match(body) if self._fields or "time " in body[:12] else None
        if not self._fields:
            if body.startswith(("Root Cause (first", "Failures:")):
                self._root = body.startswith("Root")
            if match is None or match[1] != "time" or line_time(match[2]) is None:
                return
        elif body.startswith(("-----", "=====")):
            self._close()
            return
        if match is not None and match[1] == "time":
            self._close()
            self._fields = {"time": match[2].strip()}
            self._line = line
        elif match is not None and match[1] not in self._fields:
            self._fields[match[1]] = match[2].strip()
            if match[1] == "exitcode":
                self._exit_line = line
        if line - self._line > 400:
            self._close()

    def finish(self) -> tuple[WorkerFailure, ...]:
        """All entries."""
        self._close()
        return tuple(self._found)

    def _close(self) -> None:
        worker = self.open
        self._fields = {}
        if worker is not None and worker.rank is not None and len(self._found) < _MOST:
            self._found.append(worker)


def from_workers(evidence: Evidence, rules: Rulebook) -> list[Candidate]:
    """Candidates from torchrun's lists and error files. The rules for log lines apply to their messages too."""
    found: list[Candidate] = []
    for worker in workers_of(evidence):
        text = worker.message.split("\n", 1)[0]
        matches = rules.matches(text[:4000])
        special = any(rule.order > 40 and rule.id != "error-word" for rule, _ in matches)
        for rule, match in matches:
            denied = evidence.of_a_run and is_denied(rules.class_of(rule), evidence.end)
            if denied or rule.role == "context" or (rule.order == 40 and special):
                continue
            peer = match.groupdict().get("peer")
            hit = Hit(rule.id, worker.file, worker.line, text[:600], worker.node, worker.rank, worker.time, peer=peer)
            found.append(replace(of_hit(hit, rule, rules, evidence), source=worker.source))
            break
    return found


def workers_of(evidence: Evidence) -> list[WorkerFailure]:
    """Failed workers that torchrun did not end itself, by SIGTERM, unless that ended all of them; earliest first.
    torchrun's own claim only breaks ties."""
    every = [worker for scan in evidence.logs for worker in scan.workers]
    workers = [worker for worker in every if worker.exit_code != TERMINATED] or every
    return sorted(
        workers,
        key=lambda worker: (
            math.inf if worker.time is None else worker.time, not worker.said_root, worker.source, worker.line
        ),
    )  # fmt: skip
