"""Log lines for the terminal: with their origin, the last ones of a run, and the node given by --node."""

from __future__ import annotations

import re
from typing import TextIO

from hpc_launch.base.errors import UsageError
from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.rank_logs import LogFile, RankLogLine, log_files
from hpc_launch.runs.records.attempt_files import Reader
from hpc_launch.runs.status.progress_reader import tail_lines
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view import format_values
from hpc_launch.view.format_values import log_lines
from hpc_launch.view.state_text import last_attempt
from hpc_launch.view.terminal import tolerant

BATCH = "batch"
"""Prefix of the batch script's lines."""


class Printer:
    """Writes lines, prefixed with their file unless a node or rank was selected. `lines` counts them."""

    def __init__(self, stream: TextIO, *, one_node: bool, one_rank: bool) -> None:
        self.lines = 0
        self._stream = tolerant(stream)
        self._one_node = one_node
        self._one_rank = one_rank

    def show(self, line: RankLogLine) -> None:
        """Write one line, with escapes removed. Raises BrokenPipeError if the reader is gone."""
        self.lines += 1
        known = self._one_rank or (self._one_node and line.file.rank is None)
        prefix = "" if known else f"{_name(line.file):<6} | "
        self._stream.write("".join(f"{prefix}{part}\n" for part in format_values.log_lines(line.text)))

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


def choose_node(wanted: str, attempt: AttemptFolder) -> int | None:
    """The index of a node given by index or host name; None if one host is all the nodes of a local run.

    Raises UsageError for a node that is not known to be part of the attempt.
    """
    numbers = sorted({file.node for file in log_files(attempt) if file.node is not None})
    names = Reader().read(attempt).nodes
    if wanted.isdecimal() and wanted not in names:
        number = int(wanted)
        if numbers and number not in numbers and number >= len(names):
            raise UsageError(f"no node {number} in this attempt", f"nodes with output: {', '.join(map(str, numbers))}")
        return number
    matches = [at for at, name in enumerate(names) if wanted in (name, name.split(".")[0])]
    if not matches:
        known = (
            f"its nodes are {format_values.hosts(names)}" if names else "node names are known once the job has started"
        )
        hint = f"{known}; or give the node's index, from 0"
        raise UsageError(f"no node {format_values.clean(wanted)!r} in this attempt", hint)
    return None if len(names) == 1 and len(numbers) > 1 else matches[0]


def _name(file: LogFile) -> str:
    return BATCH if file.node is None else file.path.name.removesuffix(".log")


TAIL_BYTES = 16 * 1024
"""Bytes read from the end of a log."""

_RANK = re.compile(r"\[rank(\d{1,7})\]:[ ]?")


def last_lines(status: RunStatus, most: int) -> list[str]:
    """The newest lines of rank 0, oldest first, with escapes removed; the batch script's if the training wrote none."""
    attempt = last_attempt(status)
    if attempt is None or most <= 0:
        return []
    folder = AttemptFolder(attempt.folder)
    for path in (folder.first_log, folder.batch_log):
        try:
            newest = tail_lines(path, TAIL_BYTES, over=attempt.ended is not None)
        except OSError:
            continue
        lines = [line for text in reversed(newest) if (own := _of_rank_0(text)) for line in log_lines(own)]
        if lines:
            return lines[-most:]
    return []


def _of_rank_0(text: str) -> str:
    """The line without its rank prefix; empty for other ranks."""
    match = _RANK.match(text)
    if match is None:
        return text
    return text[match.end() :] if int(match[1]) == 0 else ""
