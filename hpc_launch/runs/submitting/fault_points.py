"""Fault injection for tests: kill or freeze the submitting process after a given step."""

from __future__ import annotations

import os
import signal
from collections import Counter

KILL_AFTER = "HPC_LAUNCH_TEST_KILL_AFTER"
STOP_AFTER = "HPC_LAUNCH_TEST_STOP_AFTER"

_done = Counter[str]()


def checkpoint(step: str) -> None:
    """Mark `step` as done. The process sends itself SIGKILL or SIGSTOP if the variable names this step.

    `STEP#2` names it when it is done for the second time.
    """
    _done[step] += 1
    names = (step, f"{step}#{_done[step]}")
    if os.environ.get(KILL_AFTER) in names:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get(STOP_AFTER) in names:
        os.kill(os.getpid(), signal.SIGSTOP)
