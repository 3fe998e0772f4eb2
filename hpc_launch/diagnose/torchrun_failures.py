"""Read torchrun's lists of failed workers, and find possible root causes in them and in its error files."""

from __future__ import annotations

import math
import re

from msgspec.structs import replace

from hpc_launch.diagnose import meanings
from hpc_launch.diagnose.diagnosis import Candidate
from hpc_launch.diagnose.evidence import Evidence, Hit, LogScan, WorkerFailure
from hpc_launch.diagnose.log_candidates import is_denied, of_hit
from hpc_launch.diagnose.log_line import line_time
from hpc_launch.diagnose.rulebook import Rulebook

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
    workers = [worker for worker in every if worker.exit_code != meanings.TERMINATED] or every
    return sorted(
        workers,
        key=lambda worker: (
            math.inf if worker.time is None else worker.time, not worker.said_root, worker.source, worker.line
        ),
    )  # fmt: skip
