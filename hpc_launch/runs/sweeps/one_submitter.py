"""A lock that keeps the drivers of a sweep from submitting its points at the same time.

It only saves work: where the file system has no locks, the claims of arrays and attempts still make each point train
once (submit_array.py).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hpc_launch.runs.sweeps.sweep_folder import SweepFolder

FROZEN_S = 600.0
"""A process that holds the lock for so long may be frozen: the others go on without it."""


@contextmanager
def one_submitter(sweep: SweepFolder) -> Iterator[bool]:
    """Whether this process may submit points of the sweep now. False while another one does."""
    with ExitStack() as stack:
        free = True
        try:
            descriptor = os.open(sweep.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            stack.callback(os.close, descriptor)
            # POSIX locks reach other nodes over NFS, and a supervisor that is forked meanwhile does not inherit them.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.utime(descriptor)
        except (BlockingIOError, PermissionError):
            free = _seems_frozen(sweep)
        except OSError:
            pass  # no locks here
        yield free


def _seems_frozen(sweep: SweepFolder) -> bool:
    try:
        return time.time() - sweep.lock.stat().st_mtime > FROZEN_S
    except OSError:
        return False
