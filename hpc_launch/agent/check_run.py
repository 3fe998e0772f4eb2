"""Run each check of check.py in a process of its own, with a time limit.

Standard library of Python 3.6 or later.
"""

import json
import os
import select
import signal
import subprocess
import time
from typing import Callable, Dict, Iterator, List, Tuple

from hpc_launch.agent.check_host import Result, result, unknown

Check = Callable[[], Result]
LONGEST = 60000
"""A pipe holds 64 KiB, so that no check waits for a reader."""


class Running:
    """The checks of this node that run."""

    def __init__(self) -> None:
        self.checks: Dict[int, Tuple[str, int, float, List[bytes]]] = {}

    def start(self, checks: Dict[str, Tuple[Check, float]]) -> None:
        """Start checks, each with its limit in seconds."""
        for name, (check, limit) in checks.items():
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                self.work(check, read, write)
            os.close(write)
            self.checks[read] = (name, child, time.monotonic() + limit, [])

    def work(self, check: Check, read: int, write: int) -> None:
        """The process of a check. It never returns."""
        try:
            os.setpgid(0, 0)
            os.close(read)
            try:
                outcome = check()
            except subprocess.TimeoutExpired as late:
                outcome = result(False, "%s gives no answer within %d s" % (late.cmd[0], late.timeout))
            except Exception as error:
                outcome = unknown("%s: %s" % (type(error).__name__, error))
            os.write(write, json.dumps(outcome).encode()[:LONGEST])
        finally:
            os._exit(0)

    def results(self, beat: float) -> Iterator[List[Result]]:
        """The results as they come, or none after `beat` seconds; a check that exceeds its time fails."""
        while self.checks:
            soonest = min(entry[2] for entry in self.checks.values())
            ready = select.select(list(self.checks), [], [], min(beat, max(0.0, soonest - time.monotonic())))[0]
            found = []
            for pipe in list(self.checks):
                name, child, end, parts = self.checks[pipe]
                data = os.read(pipe, 1 << 16) if pipe in ready else b""
                if data:
                    parts.append(data)
                elif pipe in ready or time.monotonic() >= end:
                    found.append(finished(name, child, b"".join(parts), late=pipe not in ready))
                    os.close(pipe)
                    del self.checks[pipe]
            if found or not ready:
                yield found


def finished(name: str, child: int, data: bytes, late: bool) -> Result:
    """The result of a check that has ended, or that did not in time. Waits for no process: it may never end."""
    for pid in (-child, child):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    os.waitpid(child, os.WNOHANG)
    try:
        found: Result = json.loads(data.decode())
    except ValueError:
        found = result(False, "%s: no answer" % name) if late else unknown("the check itself ended early")
    found["check"] = name
    return found
