"""Run another program to its end, and read what it prints."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def run_program(
    command: Sequence[str], timeout_s: float | None, *, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it without a terminal and without input. Raises OSError if it cannot be started, and TimeoutExpired."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        timeout=timeout_s,
        check=False,
    )
