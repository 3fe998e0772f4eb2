"""The part of the node check that runs inside the job's image, for check.py: its Python and its PyTorch.

A second check.py, started with --inside by the image's Python, checks the software there and reports to the
judge on a connection of its own. Where the container is an option of srun, the script starts it; elsewhere the first
one does, by the very command that starts the training in the image. Standard library of Python 3.6 or later.
"""

import os
import select
import signal
import subprocess
import sys
import time
from typing import Optional

from hpc_launch.agent.check_host import Result, result, unknown

PART = "image"
"""What the lines about this part are marked with; also the name of the check that the image starts."""
IMAGE_LOG = "check-image.log"
"""What the image prints, in the attempt's folder agent/: not where the node's own reports are read."""
IMAGE_S = 60.0
STARTED = b"hpc-launch: started"
"""What the command prints when it is in the image (job.sh.j2)."""
NOT_FOUND = (126, 127)
"""Exit codes of a shell that cannot start a program (POSIX, 2.8.2)."""


class Inside:
    """The part inside, as this node's own check has started it."""

    def __init__(self, command: str, python: str, attempt: str) -> None:
        self.python, self.until = python, time.monotonic() + IMAGE_S
        with open(os.path.join(attempt, "agent", IMAGE_LOG), "ab") as output:
            self.process = subprocess.Popen(
                ["bash", command, "-I", os.path.abspath(sys.argv[0]), *sys.argv[1:], "--inside"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )

    def started(self) -> Result:
        """Whether the image starts. Only this reads what it prints, in the process of a check."""
        pipe, data = self.process.stderr.fileno() if self.process.stderr else -1, b""
        while STARTED not in data:
            if not select.select([pipe], [], [], max(0.0, self.until - time.monotonic()))[0]:
                self.kill()
                return result(False, "the image does not start within %d s" % IMAGE_S)
            more = os.read(pipe, 1 << 16)
            if not more:
                lines = [line for line in data.decode("utf-8", "replace").split("\n") if line.strip()]
                return result(False, "the image does not start: %s" % (lines or ["no message"])[-1].strip())
            data = data[-(1 << 16) :] + more
        return result(True, "the image starts")

    def ended(self, seconds: float) -> Optional[Result]:
        """Wait for its end, and end it. Returns what to report if it cannot have reported everything itself."""
        try:
            code: Optional[int] = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        if code == 0:
            return None
        if code in NOT_FOUND:
            return unknown("no %s in the image" % self.python)
        return unknown("the check inside the image ended early" if code is not None else "it did not end")

    def kill(self) -> None:
        """End what is left of it."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
