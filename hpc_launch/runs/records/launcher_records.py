"""logs/: exit codes of the launchers, and the error files of torchelastic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpc_launch.base.files import read_text
from hpc_launch.base.json_records import as_record, read_record
from hpc_launch.runs.layout import AttemptFolder

MAX_WORKER_FILES = 1024


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


class LauncherExit(Struct, frozen=True, kw_only=True):
    """The exit code of the launcher on one node, or of one process. `time` is in seconds since the epoch."""

    node: int
    path: Path
    exit_code: int
    time: float
    rank: int | None = None


class WorkerError(Struct, frozen=True, kw_only=True):
    """The error of one worker or agent of torchelastic. `time` is in seconds since the epoch."""

    node: int
    path: Path
    message: str
    local_rank: int | None = None
    exit_code: int | None = None
    time: float | None = None


def launcher_exits(attempt: AttemptFolder) -> Iterator[LauncherExit]:
    """The exit codes that the nodes, or their processes, recorded."""
    for node, rank, path in attempt.exit_files():
        with suppress(OSError, ValueError):
            code = int(read_text(path, errors="replace").strip())
            yield LauncherExit(node=node, path=path, exit_code=code, time=path.stat().st_mtime, rank=rank)


def worker_errors(attempt: AttemptFolder) -> Iterator[WorkerError]:
    """The errors of torchelastic's agents, then those of workers that use `@record`."""
    for node, path in attempt.error_files():
        yield from _worker_error(node, path, None)
    for node, path in islice(attempt.worker_error_files(), MAX_WORKER_FILES):
        rank = path.parent.name
        yield from _worker_error(node, path, int(rank) if rank.isdecimal() else None)


def _worker_error(node: int, path: Path, local_rank: int | None) -> Iterator[WorkerError]:
    file = read_record(path, _ErrorFile) or _ErrorFile()
    inner = as_record(file.message, _Message) or _Message(message=file.message if isinstance(file.message, str) else "")
    if inner.message.strip():
        yield WorkerError(
            node=node,
            path=path,
            message=inner.message.strip()[:2000],
            local_rank=local_rank,
            exit_code=inner.errorCode if file.errorCode is None else file.errorCode,
            time=inner.extraInfo.timestamp,
        )
