"""Runs the job's command on one host, and ends it when the connection to the first host is lost.

    on_host.py [--lease] COMMAND...  in the shell that fan_out.py starts over ssh

Without a terminal, ssh sends no signal when it ends. So the first host writes a line to the standard input every
second: the end of the input, or SILENT_S without a line, ends all processes of the command, in whatever session. The
exit code is the command's, or 143; the line `over` says that the command itself ended and noted it. With --lease, no
other run may use the host (lease.py): 75 if one does.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import List, Optional

from hpc_launch.agent.job_processes import SET_CHILD_SUBREAPER, SET_PDEATHSIG, all_below, end_all, prctl
from hpc_launch.agent.lease import FOLDER, Lease

SILENT_S = 10.0
"""With KILL_S of job_processes.py less than the 15 s in which a host without a connection ends its part of the job."""


class Command:
    """The command, its descendants and its connection."""

    def __init__(self, words: List[str]) -> None:
        self.status: Optional[int] = None
        self.ended = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        prctl(SET_CHILD_SUBREAPER, 1)
        parent = os.getpid()

        def end_with_parent() -> None:
            prctl(SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(143)

        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - the only other thread renews the lease
        )

    def on_signal(self, number: int, _: object) -> None:
        self.ended = True

    def wait(self) -> None:
        """Until the command has ended, the connection is lost, or a signal arrives."""
        began = heard = time.monotonic()
        while self.status is None and not self.ended:
            readable = select.select([0], [], [], min(0.3, 0.01 + (time.monotonic() - began) / 32))[0]
            self.reap()
            now = time.monotonic()
            if readable:
                heard = now
                try:
                    self.ended = not os.read(0, 1 << 16) or self.ended
                except OSError:
                    self.ended = True
            elif now - heard > SILENT_S:
                self.ended = True

    def reap(self) -> None:
        """Collect ended children: as a subreaper, this process inherits those of others."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.process.pid:
                    self.status = status

    def finish(self) -> int:
        """End all remaining processes. Returns the exit code."""
        itself = self.status is not None and os.WIFEXITED(self.status) and noted()
        end_all(lambda: all_below(os.getpid()), self.reap)
        if itself:
            with contextlib.suppress(OSError):
                os.write(1, b"\nover\n")
        if self.status is None:
            return 143
        return 128 + os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else os.WEXITSTATUS(self.status)


def noted() -> bool:
    """Whether this node of the attempt, or a process of it, has left an exit code. Other hosts may see it later."""
    begin = "node-%s." % os.environ.get("HPC_LAUNCH_NODE", "")
    try:
        names = os.listdir(os.path.join(os.environ.get("HPC_LAUNCH_ATTEMPT_DIR", ""), "logs"))
    except OSError:
        return False
    return any(name.startswith(begin) and name.endswith(".exit") for name in names)


def main(words: List[str]) -> int:
    """Run the command."""
    lease = None
    if words[:1] == ["--lease"]:
        words = words[1:]
        try:
            lease = Lease(os.environ.get("HPC_LAUNCH_RUN_NAME", ""), os.environ.get("HPC_LAUNCH_JOB_ID", ""))
        except OSError as error:
            sys.stderr.write("%s: cannot write a lease in %s: %s\n" % (os.uname().nodename, FOLDER, error.strerror))
            return os.EX_TEMPFAIL
        holder = lease.taken_by()
        if holder is not None:
            lease.release()
            sys.stderr.write("%s\n" % (holder,))
            return os.EX_TEMPFAIL
    try:
        command = Command(words)
        command.wait()
        return command.finish()
    except OSError as error:
        sys.stderr.write("cannot start %s: %s\n" % (words[0], error))
        return 127
    finally:
        if lease is not None:
            lease.release()
