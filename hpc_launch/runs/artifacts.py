"""Read the artifacts of an attempt as evidence: logs, error files, exit codes of launchers, events of the watcher."""

from __future__ import annotations

import errno
import os
import re
import select
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from hpc_launch.base.files import next_data, open_regular, read_tail, read_text, without_waiting
from hpc_launch.base.json_records import as_record, read_record
from hpc_launch.diagnose.evidence import AgentNote, Hit, LogScan, NodeExit, WorkerFailure
from hpc_launch.diagnose.hang_stacks import Stand, late, stacks_in_log, stand
from hpc_launch.diagnose.rulebook import Rulebook
from hpc_launch.diagnose.scan_log import UNITS, LogScanner, decoded
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.rank_logs import log_files
from hpc_launch.runs.records.node_records import WatcherEvent, read_hang, watcher_events
from hpc_launch.runs.records.verdict_record import read_verdict

CHUNK = 1 << 18
HEAD = 64 << 20
"""Bytes at the beginning of a log that are always scanned."""
TAIL = 256 << 20
"""Bytes at its end that are always scanned. In a larger log the lines between the two are only counted."""

LONGEST_PIPE = 1 << 30
"""Bytes that are read of a pipe: some have no end."""
WRITER_MS, SILENT_MS = 1000, 30_000
"""How long to wait for the first writer of a named pipe, and for more of it."""

_ERROR_FILES = 1 << 20
"""The source number of the error files: after all logs."""

MAX_WORKER_FILES = 1024

_STACK_TAIL = 4 << 20
"""Bytes at the end of a log that may hold stacks: they are the last that a rank prints."""


class _ExtraInfo(Struct, frozen=True, kw_only=True):
    timestamp: float | None = None


class _Message(Struct, frozen=True, kw_only=True):
    message: str = ""
    extraInfo: _ExtraInfo = _ExtraInfo()  # noqa: N815 - torchelastic's key
    errorCode: int | None = None  # noqa: N815


class _ErrorFile(Struct, frozen=True, kw_only=True):
    """The file as torchelastic writes it: `message` is a text, or an object with more."""

    message: Any = None
    errorCode: int | None = None  # noqa: N815


def read_chunks(path: Path, scanner: LogScanner, *, wait: bool = False) -> LogScan:
    """Scan a file; the middle of one larger than HEAD and TAIL together is only counted. Raises OSError.

    `wait`: a file that the user named, which may be a pipe: it is read until its writers are gone, or silent.
    """
    with open(path, "rb", opener=without_waiting) if wait else open_regular(path) as stream:
        status = os.fstat(stream.fileno())
        if stat.S_ISFIFO(status.st_mode) or os.isatty(stream.fileno()):
            chunks = bounded(_pipe_chunks(stream.fileno()))
        elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            raise OSError(errno.EINVAL, "it is a device")  # most devices have no end
        else:
            chunks = _chunks(stream, status.st_size, scanner)
        for chunk in decoded(chunks):
            scanner.feed(chunk)
    return scanner.finish()


def bounded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks of a pipe, which may have no end. Raises OSError after LONGEST_PIPE bytes."""
    left = LONGEST_PIPE
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            raise OSError(errno.EFBIG, f"more than {LONGEST_PIPE >> 20} MiB without an end; write it to a file first")
        yield chunk


def _pipe_chunks(descriptor: int) -> Iterator[bytes]:
    """What the writers of a named pipe write. A reader that comes before the first of them waits a moment."""
    os.set_blocking(descriptor, True)
    writer, patience = select.poll(), WRITER_MS
    writer.register(descriptor, select.POLLIN)
    while writer.poll(patience) and (chunk := os.read(descriptor, CHUNK)):
        yield chunk
        patience = SILENT_MS


def _chunks(stream: BinaryIO, size: int, scanner: LogScanner) -> Iterator[bytes]:
    """A file up to its present end: its writer may be as fast as this reader."""
    skip = (HEAD, size - TAIL) if size > HEAD + TAIL else (size, size)
    position = 0
    while position < size and (chunk := stream.read(min(CHUNK, size - position))):
        position += len(chunk)
        if skip[0] < position <= skip[1]:
            scanner.pass_over(chunk)
            data = min(next_data(stream, position), skip[1])
            position = stream.seek(data) if data > position else position
        else:
            yield chunk


def scans(attempt: AttemptFolder, rules: Rulebook, nodes: tuple[str, ...]) -> Iterator[LogScan]:
    """Scan all logs with the rules, then torchelastic's error files as one more source."""
    left = UNITS
    for number, log in enumerate(log_files(attempt)):
        name, node = _relative(log.path, attempt), _name(log.node, nodes)
        scanner = LogScanner(rules, name, source=number, node=node, rank=log.rank, units=left)
        with suppress(OSError):
            yield read_chunks(log.path, scanner)
        left = max(scanner.lines.left, UNITS // 20)
    failures = tuple(_worker_failures(attempt, nodes))
    if failures:
        yield LogScan("error files", source=_ERROR_FILES, workers=failures)


def _worker_failures(attempt: AttemptFolder, nodes: tuple[str, ...]) -> Iterator[WorkerFailure]:
    """The errors of torchelastic's agents, then those of workers that use `@record`."""
    for number, path in chain(attempt.error_files(), islice(attempt.worker_error_files(), MAX_WORKER_FILES)):
        record = read_record(path, _ErrorFile) or _ErrorFile()
        text = record.message if isinstance(record.message, str) else ""
        inner = as_record(record.message, _Message) or _Message(message=text)
        if message := inner.message.strip()[:2000]:
            file, node, time = _relative(path, attempt), _name(number, nodes), inner.extraInfo.timestamp
            code = inner.errorCode if record.errorCode is None else record.errorCode
            yield WorkerFailure(file, 0, None, node, time, code, message, source=_ERROR_FILES)


def node_exits(attempt: AttemptFolder, nodes: tuple[str, ...]) -> Iterator[NodeExit]:
    """The exit codes of the launchers by node, or of the processes, as the nodes recorded them."""
    for number, rank, path in attempt.exit_files():
        with suppress(OSError, ValueError):
            code, written = int(read_text(path, errors="replace").strip()), path.stat().st_mtime
            name = _name(number, nodes) or ("" if number < 0 else f"node {number}")
            yield NodeExit(name, code, _relative(path, attempt), written, rank)


def notes(attempt: AttemptFolder, nodes: tuple[str, ...]) -> Iterator[AgentNote]:
    """What the watchers recorded: which rank ended first and how, and whether the training hung."""
    yield from _hang_note(attempt, nodes)
    for number, path in attempt.watcher_files():
        told = list(watcher_events(path))
        raised = {event.rank: event.t for event in told if event.event == "raised"}
        for event in told:
            note = _event_note(event, _relative(path, attempt), _name(number, nodes) or event.host)
            if note is not None:
                yield replace(note, oom_kill=event.oom_kill, raised=raised.get(event.rank))


def _hang_note(attempt: AttemptFolder, nodes: tuple[str, ...]) -> Iterator[AgentNote]:
    hang = read_hang(attempt)
    if hang is None:
        return
    text = "no output and no work" + ("" if hang.silent_s is None else f" for {hang.silent_s:.0f} s")
    missing = missing_ranks(attempt)
    text += "".join(f"; rank {rank} {place}" for rank, place in list(missing.items())[:3])
    text += " while others waited" if missing else ""
    rank = next(iter(missing), None)
    # The node that detected the hang is not necessarily the one that caused it.
    node = _node_of(attempt, rank, nodes) if rank is not None else None
    yield AgentNote(
        "hang", _relative(attempt.hang, attempt), text, node, rank, hang.began, ranks=tuple(missing), noticed=hang.t
    )


def _event_note(event: WatcherEvent, file: str, node: str | None) -> AgentNote | None:
    rank, at, signal, code = event.rank, event.t, event.signal, event.exit_code
    if event.event == "gone":
        if event.oom_kill:
            return AgentNote("oom_kill", file, f"rank {rank} was killed for its memory", node, rank, at, signal, code)
        if signal or code is not None:
            text = f"rank {rank} ended " + (f"by signal {signal}" if signal else f"with exit code {code}")
            return AgentNote("death" if signal or code else "left", file, text, node, rank, at, signal, code)
    if event.event in {"gone", "end"} and event.oom_kill is False:
        who = "all" if rank is None else f"rank {rank}"
        return AgentNote("spared", file, f"{who} ended, and not for lack of memory", node, rank, at)
    if event.event in {"gpu_fault", "xid"}:
        return AgentNote("gpu", file, (event.text or event.event)[:300], node, rank, at)
    return None


def _node_of(attempt: AttemptFolder, rank: int, nodes: tuple[str, ...]) -> str | None:
    """The node where a rank was last seen."""
    for number, path in attempt.watcher_files():
        if any(event.has_rank(rank) for event in watcher_events(path)):
            return _name(number, nodes)
    return None


def missing_ranks(attempt: AttemptFolder) -> dict[int, Stand]:
    """The ranks that the others waited for in a hang, and where each stood; empty where that cannot be determined."""
    stands: dict[int, Stand] = {}
    for _, _, log in attempt.node_logs():
        stands.update((rank, Stand(frames)) for rank, frames in stacks_in_log(_last_lines(log)).items())
    for rank, file in attempt.stack_files():
        found = stand("\n".join(_last_lines(file)))
        stands[rank] = found if found.frames or rank not in stands else replace(found, frames=stands[rank].frames)
    gone = (event for _, path in attempt.watcher_files() for event in watcher_events(path) if event.event == "gone")
    left = {event.rank for event in gone if event.exit_code == 0}
    left.update(one.rank for one in node_exits(attempt, ()) if one.code == 0 and one.rank is not None)
    return late(stands, some_left=bool(left.difference(stands)))


def _last_lines(path: Path) -> Iterator[str]:
    with suppress(OSError):
        yield from read_tail(path, _STACK_TAIL)[0].decode("utf-8", "replace").splitlines()


def _relative(path: Path, attempt: AttemptFolder) -> str:
    return os.path.relpath(path, attempt.path)


def _name(number: int | None, nodes: tuple[str, ...]) -> str | None:
    return nodes[number] if number is not None and 0 <= number < len(nodes) else None


_GOOD = frozenset({"CONTINUE", "NONE"})
"""Verdicts on an attempt that trained until something outside ended it, or to its end."""
_MOST = 2
"""How many good attempts are compared, the newest first."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


def without_ordinary(found: Iterable[LogScan], attempt: AttemptFolder, rules: Rulebook) -> Iterator[LogScan]:
    """The scans, in which such lines count as warnings only."""
    ordinary: frozenset[str] | None = None
    for scan in found:
        if scan.hits and ordinary is None:
            ordinary = ordinary_lines(attempt, rules)
        if not scan.hits or not ordinary:
            yield scan
            continue
        yield replace(
            scan, hits=tuple(replace(hit, faint=True) if _form(hit) in ordinary else hit for hit in scan.hits)
        )


def ordinary_lines(attempt: AttemptFolder, rules: Rulebook) -> frozenset[str]:
    """The forms of the lines after which all of the newest good attempts before this one trained on."""
    earlier = ((one, read_verdict(one)) for one in attempt.run.attempts() if one.number < attempt.number)
    good = [one for one, verdict in earlier if verdict is not None and verdict.action in _GOOD][-_MOST:]
    forms = [
        frozenset(_form(hit) for scan in scans(one, rules, ()) for hit in scan.hits if hit.later_progress)
        for one in good
    ]
    return frozenset.intersection(*forms) if forms else frozenset()


def _form(hit: Hit) -> str:
    return f"{hit.rule}: {_NUMBERS.sub('#', hit.text)}"


_JOB = re.compile(r"\*\*\* (?:JOB|STEP) (\d+)\b|\bStepId=(\d+)\b")
"""The job in a message of slurmstepd: src/slurmd/slurmstepd/req.c and mgr.c."""


def without_other_jobs(found: Iterable[LogScan], job_id: str | None) -> Iterator[LogScan]:
    """The scans without the messages that name another job than `job_id`."""
    if job_id is None:
        yield from found
        return
    for scan in found:
        hits = tuple(hit for hit in scan.hits if _job(hit.text) in (None, job_id))
        yield scan if len(hits) == len(scan.hits) else replace(scan, hits=hits)


def _job(text: str) -> str | None:
    match = _JOB.search(text)
    return next(filter(None, match.groups())) if match else None
