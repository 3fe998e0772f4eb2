"""Fault injection for tests: kill or freeze the submitting process after a given step."""

from __future__ import annotations

import os
import signal

KILL_AFTER = "HPC_LAUNCH_TEST_KILL_AFTER"
STOP_AFTER = "HPC_LAUNCH_TEST_STOP_AFTER"


def checkpoint(step: str) -> None:
    """Mark `step` as done. The process sends itself SIGKILL or SIGSTOP if the variable names this step."""
    if os.environ.get(KILL_AFTER) == step:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get(STOP_AFTER) == step:
        os.kill(os.getpid(), signal.SIGSTOP)
