"""Limit the time of a search with a regular expression of somebody else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooSlowError(Exception):
    """A search exceeded its time limit."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End the block with TooSlowError after `seconds`.

    Only a signal can interrupt `re`, and only the main thread receives signals; elsewhere the bounds on lines must
    suffice. A timer that is already set is kept.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
