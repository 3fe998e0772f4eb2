"""Run another program to its end, and read what it prints."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


def run_program(
    command: Sequence[str],
    timeout_s: float | None,
    *,
    environment: Mapping[str, str] | None = None,
    text: str = "",
    folder: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run it without a terminal; `text` is its input. Raises OSError if it cannot be started, and TimeoutExpired."""
    given: dict[str, Any] = {"input": text} if text else {"stdin": subprocess.DEVNULL}
    return subprocess.run(
        command,
        **given,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        cwd=folder,
        timeout=timeout_s,
        check=False,
    )
