"""Parse single values printed by Slurm's commands: states, times, exit codes, counts and text."""

from __future__ import annotations

import os
import re
from datetime import datetime


def base_state(text: str) -> str:
    """Slurm's base state: `CANCELLED by 1000` and `CANCELLED+` are CANCELLED."""
    words = text.split()
    return words[0].rstrip("+").upper() if words else "UNKNOWN"


def epoch(text: str) -> float | None:
    """Seconds since the epoch of a time that Slurm prints as `%s`, which we request, or as ISO local time."""
    text = text.strip()
    if re.fullmatch(r"\d{1,11}", text, re.ASCII):
        return float(text) or None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def exit_and_signal(text: str) -> tuple[int | None, int | None]:
    """Exit code and signal of `1:0` or `0:9`; a job killed by a signal has no exit code."""
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text.strip(), re.ASCII)
    if match is None:
        return None, None
    code, signal = int(match[1]), int(match[2])
    return (None, signal) if signal else (code, None)


def wait_status(text: str) -> tuple[int | None, int | None]:
    """Exit code and signal of squeue's `exit_code`: the raw wait(2) status (22.05) or `1:0` (24.11 and newer)."""
    if ":" in text:
        return exit_and_signal(text)
    if not re.fullmatch(r"\d{1,5}", text.strip(), re.ASCII):
        return None, None
    status = int(text)
    signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return (None, signal) if signal else (os.WEXITSTATUS(status), None)


def number(text: str | None) -> int | None:
    """A count; None for anything else that Slurm prints in its place."""
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII) else None


def optional_text(text: str | None) -> str | None:
    """A text; None for Slurm's placeholders for an empty value."""
    cleaned = (text or "").strip()
    return None if cleaned in {"", "None", "(null)", "N/A", "n/a", "None assigned", "Unknown"} else cleaned
