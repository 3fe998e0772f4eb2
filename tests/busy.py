"""Time limits for a machine that has other work to do."""

from __future__ import annotations

import os


def patience(seconds: float) -> float:
    """A limit that holds on an idle machine, lengthened by the number of processes that wait for each of its cores."""
    cores = len(os.sched_getaffinity(0))
    return seconds * (1 + os.getloadavg()[0] / cores)
