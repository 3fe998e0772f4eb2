"""The last lines of a run's log."""

from __future__ import annotations

import re

from hpc_launch.runs.layout import AttemptFolder
from hpc_launch.runs.status.progress_reader import tail_lines
from hpc_launch.runs.status.run_status import RunStatus
from hpc_launch.view.format_values import log_lines
from hpc_launch.view.state_text import last_attempt

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
