"""What lies in an attempt's folder beside its records: logs, error files, exit codes of nodes, the watcher's notes."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_launch.base.files import read_json, read_text, without_waiting
from hpc_launch.recover.evidence import AgentNote, LogScan, NodeExit, WorkerFailure
from hpc_launch.recover.rulebook import Rulebook
from hpc_launch.recover.scan_log import LogScanner, decoded
from hpc_launch.run.diagnosis.stack_files import absent
from hpc_launch.run.layout import AttemptFolder
from hpc_launch.run.rank_logs import log_files
from hpc_launch.run.records import values

CHUNK = 1 << 18
HEAD = 64 << 20
"""Bytes at the beginning of a log that are looked at in any case."""
TAIL = 256 << 20
"""Bytes at its end. What lies between in a larger log is only counted."""

WRITER_MS = 1000
"""How long a named pipe is given to find somebody who writes to it."""

_ERROR_FILES = 1024
_LONGEST_EVENT = 1 << 20
_EXIT = re.compile(r"node-(\d{1,9})\.exit\Z")
_ERROR = re.compile(r"node-(\d{1,9})\.error\.json\Z")


def read_chunks(path: Path, scanner: LogScanner, *, wait: bool = False) -> LogScan:
    """Scan a file; of one larger than HEAD and TAIL together the middle is only counted. Raises OSError.

    With `wait` a pipe that somebody writes to is read to its end; one that nobody writes to is at its end.
    """
    with open(path, "rb", opener=without_waiting) as stream:
        if wait:
            _await_writer(stream.fileno())
        size = os.fstat(stream.fileno()).st_size
        skip = (HEAD, size - TAIL) if size > HEAD + TAIL else None
        for chunk in decoded(_chunks(stream, skip, scanner)):
            scanner.feed(chunk)
    return scanner.finish()


def _await_writer(descriptor: int) -> None:
    """From now on reads wait, and a pipe's other end has a moment to be opened, which it waits for itself.

    Raises OSError for a device: most of them have no end.
    """
    mode = os.fstat(descriptor).st_mode
    if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not os.isatty(descriptor):
        raise OSError(errno.EINVAL, "it is a device")
    os.set_blocking(descriptor, True)
    if stat.S_ISFIFO(mode):
        other = select.poll()
        other.register(descriptor, select.POLLIN)
        other.poll(WRITER_MS)


def _chunks(stream: Any, skip: tuple[int, int] | None, scanner: LogScanner) -> Iterator[bytes]:
    at = 0
    while chunk := stream.read(CHUNK):
        at += len(chunk)
        if skip is not None and skip[0] < at <= skip[1]:
            scanner.pass_over(chunk)
        else:
            yield chunk


def scans(attempt: AttemptFolder, rules: Rulebook, nodes: tuple[str, ...]) -> Iterator[LogScan]:
    """All logs, by what the rules know of them, then torchelastic's error files as one more."""
    for number, log in enumerate(log_files(attempt)):
        node = _name(log.node, nodes)
        name = os.path.relpath(log.path, attempt.path)
        with suppress(OSError):
            yield read_chunks(log.path, LogScanner(rules, name, source=number, node=node, rank=log.rank))
    workers = tuple(_error_files(attempt, nodes))
    if workers:
        yield LogScan("error files", source=1 << 20, workers=workers)


def _error_files(attempt: AttemptFolder, nodes: tuple[str, ...]) -> Iterator[WorkerFailure]:
    """The error files of torchelastic: one a node from its agent, one a worker that used `@record`."""
    found = [(path, _ERROR.match(path.name)) for path in _listed(attempt.logs, "node-*.error.json")]
    for path, match in found:
        if match is not None:
            yield from _worker(path, attempt, _name(int(match[1]), nodes), None)
    deeper = list(_listed(attempt.logs, "ranks-of-node-*/**/error.json"))[:_ERROR_FILES]
    for path in deeper:
        number = re.search(r"ranks-of-node-(\d{1,9})", str(path))
        local = int(path.parent.name) if path.parent.name.isdecimal() else None
        yield from _worker(path, attempt, _name(int(number[1]) if number else None, nodes), local)


def _worker(path: Path, attempt: AttemptFolder, node: str | None, local: int | None) -> Iterator[WorkerFailure]:
    data = read_json(path)
    message = data.get("message") if data else None
    extra: Any = {}
    code = values.whole((data or {}).get("errorCode"))
    if isinstance(message, dict):
        inner, extra = message.get("message"), message.get("extraInfo") or {}
        code = values.whole(message.get("errorCode")) if code is None else code
        message = inner
    if isinstance(message, str) and message.strip():
        yield WorkerFailure(
            file=os.path.relpath(path, attempt.path),
            line=0,
            local_rank=local,
            node=node,
            time=values.seconds(extra.get("timestamp")) if isinstance(extra, dict) else None,
            exit_code=code,
            message=message.strip()[:2000],
            source=1 << 20,
        )


def node_exits(attempt: AttemptFolder, nodes: tuple[str, ...]) -> Iterator[NodeExit]:
    """The exit codes that the launchers of the nodes noted."""
    for path in _listed(attempt.logs, "node-*.exit"):
        match = _EXIT.match(path.name)
        with suppress(OSError, ValueError):
            code = int(read_text(path, errors="replace").strip())
            if match is not None:
                name = _name(int(match[1]), nodes) or f"node {match[1]}"
                yield NodeExit(name, code, os.path.relpath(path, attempt.path), path.stat().st_mtime)


def notes(attempt: AttemptFolder, nodes: tuple[str, ...]) -> Iterator[AgentNote]:
    """What the watcher of each node wrote: who ended first and how, and whether it hung."""
    folder = attempt.path / "agent"
    hang = read_json(folder / "hang.json")
    if hang is not None:
        silent = values.seconds(hang.get("silent_s"))
        words = f"no output and no work for {silent:.0f} s" if silent is not None else "no output and no work"
        missing = absent(attempt)
        words += "".join(f"; rank {rank} stood at {frame}" for rank, frame in list(missing.items())[:3])
        words += " while others waited" if missing else ""
        rank = next(iter(missing), None)
        # The node that noticed it is any of them.
        at = _node_of(folder, rank, nodes) if rank is not None else None
        yield AgentNote("hang", "agent/hang.json", words, at, rank, _began(hang, silent), ranks=tuple(missing))
    for path in _listed(folder, "node-*.jsonl"):
        number = values.whole(path.stem.removeprefix("node-"))
        node = _name(number, nodes)
        for data in _events(path):
            note = _event(data, os.path.relpath(path, attempt.path), node or values.text(data.get("host")))
            if note is not None:
                yield note


def _event(data: dict[str, Any], file: str, node: str | None) -> AgentNote | None:
    event, rank, when = data.get("event"), values.whole(data.get("rank")), values.seconds(data.get("t"))
    if event == "gone":
        signal, code = values.whole(data.get("signal")), values.whole(data.get("exit_code"))
        if values.flag(data.get("oom_kill")):
            return AgentNote("oom_kill", file, f"rank {rank} was killed for its memory", node, rank, when, signal, code)
        if signal or code:
            how = f"by signal {signal}" if signal else f"with exit code {code}"
            return AgentNote("death", file, f"rank {rank} ended {how}", node, rank, when, signal, code)
        if signal is None and code is None and data.get("oom_kill") is False:
            return AgentNote("spared", file, f"rank {rank} ended, and not for its memory", node, rank, when)
    if event in {"gpu_fault", "xid"}:
        return AgentNote("gpu", file, str(data.get("text") or data)[:300], node, rank, when)
    return None


def _events(path: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError), open(path, "rb", opener=without_waiting) as stream:
        while line := stream.readline(_LONGEST_EVENT):
            if b'"sample"' in line:
                continue
            with suppress(ValueError, RecursionError):
                data = json.loads(line)
                if isinstance(data, dict):
                    yield data


def _node_of(folder: Path, rank: int, nodes: tuple[str, ...]) -> str | None:
    """The node that a rank was last seen on."""
    for path in _listed(folder, "node-*.jsonl"):
        for data in _events(path):
            ranks = data.get("ranks")
            if data.get("event") == "ranks" and isinstance(ranks, dict) and str(rank) in ranks:
                return _name(values.whole(path.stem.removeprefix("node-")), nodes)
    return None


def _began(hang: dict[str, Any], silent: float | None) -> float | None:
    """When it went silent, which is when it failed."""
    when = values.seconds(hang.get("t"))
    return when - silent if when is not None and silent is not None else when


def _name(number: int | None, nodes: tuple[str, ...]) -> str | None:
    return nodes[number] if number is not None and 0 <= number < len(nodes) else None


def _listed(folder: Path, pattern: str) -> list[Path]:
    with suppress(OSError):
        return sorted(path for path in folder.glob(pattern) if os.path.isfile(path))  # a link to a device has no end
    return []
