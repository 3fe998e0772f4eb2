"""Which points of a sweep have ended, so that the last of a few submits further points in one array.

Each point whose job ends leaves a file with its number. Only these names are counted, and only once in a while does a
point look at the others: when a tenth of those in the queue have ended.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress

from hpc_launch.base.files import read_text, write_atomic
from hpc_launch.runs.layout import FOLDER_MODE
from hpc_launch.runs.sweeps.sweep_folder import SweepFolder

PARTS = 10
"""One look for each such part of the points in the queue."""

LATELY_S = 60.0
"""A job that ended so recently may still count as submitted."""


def note_ended(sweep: SweepFolder, number: int) -> None:
    """Note that the job of a point ends. Raises OSError."""
    sweep.ended.mkdir(mode=FOLDER_MODE, exist_ok=True)
    with open(sweep.ended / str(number), "wb"):
        pass


def points_ended(sweep: SweepFolder) -> int:
    """How many points have ended."""
    with suppress(OSError):
        return len(os.listdir(sweep.ended))
    return 0


def look_is_due(sweep: SweepFolder) -> bool:
    """Whether enough points have ended since points were last submitted."""
    with suppress(OSError, ValueError):
        return points_ended(sweep) >= int(read_text(sweep.next_look))
    return True


def plan_next_look(sweep: SweepFolder, ended: int, submitted: int) -> None:
    """Plan the next look, after one that began when `ended` of the now `submitted` points had ended."""
    with suppress(OSError):
        write_atomic(sweep.next_look, str(ended + max(1, math.ceil((submitted - ended) / PARTS))))


def others_ended_lately(sweep: SweepFolder, number: int) -> bool:
    """Whether other points ended shortly before this one or since: their jobs leave the queue in moments."""
    with suppress(OSError):
        own = os.stat(sweep.ended / str(number)).st_mtime
        with os.scandir(sweep.ended) as entries:
            return any(one.stat().st_mtime > own - LATELY_S for one in entries if one.name != str(number))
    return False
