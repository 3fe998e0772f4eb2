"""Limit the time of a search with a regular expression of somebody else."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


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


class SearchTime:
    """The time that searches may still take together: an expression may be slow in ways that no check foresees."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds

    def spend(self, search: Callable[[], T]) -> T | None:
        """The result of a search; None once the time is up."""
        if self._left_s <= 0:
            return None
        start = time.monotonic()
        try:
            with time_limit(self._left_s):
                return search()
        except TooSlowError:
            return None
        finally:
            self._left_s -= time.monotonic() - start
