"""Runs as the views get them, made up."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from hpc_launch.runs.status.progress_reader import Progress
from hpc_launch.runs.status.run_status import AttemptStatus, RunStatus

NOW = 1_800_000_000.0

HOSTILE = "a\x1b[2J\x1b]0;title\x07\r\nb\x9b31m\u202ec[bold]d\x00"
"""Clears the screen, sets the title, starts new lines, colours, turns the writing direction, is markup."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def attempt(folder: Path = Path("/runs/tiny-1/attempts/001"), **changes: Any) -> AttemptStatus:
    values: dict[str, Any] = {
        "number": 1,
        "folder": folder,
        "job_id": "4711",
        "state": "RUNNING",
        "source": "squeue",
        "age_s": 4.0,
        "nodes": ("n1", "n2", "n3", "n4"),
        "submitted": NOW - 60,
        "started": NOW - 35,
    }
    return AttemptStatus(**{**values, **changes})


def status(**changes: Any) -> RunStatus:
    values: dict[str, Any] = {
        "run": "tiny-1",
        "name": "tiny",
        "site": "test",
        "folder": Path("/runs/tiny-1"),
        "state": "RUNNING",
        "reason": None,
        "job_id": "4711",
        "source": "squeue",
        "age_s": 4.0,
        "attempts": (attempt(),),
        "progress": Progress(40, 200, 2.31, 3.2, 50.0),
    }
    return RunStatus(**{**values, **changes})


def steers(text: str) -> list[str]:
    """The characters of `text` that a terminal would act on rather than print."""
    return [character for character in text if not character.isprintable() and character != "\n"]
