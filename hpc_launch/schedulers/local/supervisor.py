"""The supervisor of one local job: what slurmd and slurmctld are to a job on a cluster.

    python -m hpc_launch.schedulers.local.supervisor ATTEMPT_FOLDER --job-id ID --name NAME [--time-limit SECONDS]
        [--signal-before SECONDS]

It returns as soon as the job runs; the supervisor itself goes on in a session of its own. It writes what happens to
ATTEMPT_FOLDER/local.json, runs `bash ATTEMPT_FOLDER/script.sh ATTEMPT_FOLDER` in a session of its own with its output
appended to ATTEMPT_FOLDER/batch.log, and ends when no process of the job is left:

- `--signal-before` seconds ahead of the limit: SIGUSR1 to the batch shell alone, as `sbatch --signal=B:USR1@N` does.
- at the limit, and on SIGTERM to the supervisor (a cancel): SIGTERM to the batch shell's process group, and SIGKILL
  to all that is left KILL_WAIT_S later. States TIMEOUT and CANCELLED, whatever the script's exit code.
- when the batch shell ends by itself: the same for what it left behind. State COMPLETED, or FAILED.

As a child subreaper (prctl(2)) it stays the ancestor of every process of the job, those of torchrun in sessions of
their own included. When it dies itself, the batch shell gets SIGTERM. Standard library only, and no import of the
package but its own neighbour, so that a job starts at once.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_launch.schedulers.local.processes import JOB_ID, MARK, descendants, mark, send, start_of

KILL_WAIT_S = 10.0
"""Seconds between SIGTERM and SIGKILL (slurm.conf's KillWait; its default is 30)."""
DEAD_WAIT_S = 10.0
"""How long killed processes are waited for: one that hangs in the kernel cannot be ended by anybody."""
WRITE_TRIES = 60
"""How often, once a second, the end is written again where the disk is full or away."""
NOT_WRITTEN = "cannot write the job's files"
"""How the message begins where the job was not started for its folder's sake."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def _prctl(option: int, value: int) -> None:
    """prctl(2); where there is none, jobs run all the same, and less is certain about their end."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


@dataclass
class Supervisor:
    """One job from its start to its end."""

    folder: Path
    job_id: str
    name: str
    time_limit_s: float | None
    signal_before_s: float | None
    state: dict[str, Any] = field(default_factory=dict)
    shell: int = 0
    status: int | None = None
    """The batch shell's status as wait(2) gives it; None while it runs."""

    def write(self, **changes: Any) -> None:
        """Put changes into local.json in one step. Raises OSError."""
        self.state |= changes
        temporary = self.folder / f".local.json.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump(self.state, stream, indent=2)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, self.folder / "local.json")

    def start(self) -> None:
        """Start the batch shell and say so. Raises OSError."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.write(
            job_id=self.job_id,
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            pid_start=start_of(os.getpid()),
            state="PENDING",
            submitted=time.time(),
            started=None,
            ended=None,
            exit_code=None,
            signal=None,
        )
        me = os.getpid()
        self.shell = os.fork()
        if self.shell == 0:
            try:
                self._become_the_shell(me)
            except BaseException as error:
                os.write(2, f"hpc-launch: cannot start bash: {error}\n".encode())
            finally:
                os._exit(127)
        with contextlib.suppress(OSError):
            # It runs: a disk that fills up at this moment must not make it look as if it did not.
            self.write(state="RUNNING", started=time.time(), shell=self.shell)

    def _become_the_shell(self, supervisor: int) -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != supervisor:
            os._exit(143)  # the supervisor died before the line above
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.environ |= {JOB_ID: self.job_id, MARK: mark(self.job_id, str(self.folder))}
        os.execvp("bash", ["bash", str(self.folder / "script.sh"), str(self.folder)])  # noqa: S606 - bash is one

    def run(self) -> None:
        """Follow the job to its end, and leave no process of it."""
        begin = time.monotonic()
        limit = begin + self.time_limit_s if self.time_limit_s else None
        warn = limit - self.signal_before_s if limit and self.signal_before_s else None
        verdict = None
        while self.status is None and verdict is None:
            now = time.monotonic()
            if warn is not None and now >= warn:
                send([self.shell], signal.SIGUSR1)
                warn = None
            if limit is not None and now >= limit:
                verdict = "TIMEOUT"
                break
            ahead = [at for at in (warn, limit) if at is not None]
            if self._sleep(min(ahead) - now if ahead else 3600.0) in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
                verdict = "CANCELLED"
        self._end_all()
        self._write_end(verdict)
        self._call_after()

    def _call_after(self) -> None:
        """Run the run folder's own command for the end of a job, if there is one, in a process of its own."""
        after = self.folder.parent.parent / "after.sh"
        if not after.is_file():
            return
        with contextlib.suppress(OSError):
            log = os.open(self.folder / "hook.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            if os.fork() == 0:
                try:
                    os.dup2(log, 1)
                    os.dup2(log, 2)
                    signal.pthread_sigmask(signal.SIG_SETMASK, [])
                    os.execvp("bash", ["bash", str(after), str(self.folder), "--outside"])  # noqa: S606 - bash is one
                finally:
                    os._exit(127)

    def _sleep(self, seconds: float) -> int | None:
        """Wait for a signal, at most so long; take in children that ended. The signal's number, if one came."""
        came = signal.sigtimedwait(_WATCHED, max(seconds, 0.0))
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.shell:
                    self.status = status
        return came.si_signo if came else None

    def _end_all(self) -> None:
        """SIGTERM, time to end, SIGKILL; until nothing of the job is left."""
        end = time.monotonic() + KILL_WAIT_S
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.shell, signal.SIGTERM)
        else:
            send(descendants(os.getpid()), signal.SIGTERM)
        while descendants(os.getpid()) and time.monotonic() < end:
            shell_ran = self.status is None
            self._sleep(0.1)
            if shell_ran and self.status is not None:
                send(descendants(os.getpid()), signal.SIGTERM)
        end = time.monotonic() + DEAD_WAIT_S
        while left := descendants(os.getpid()):
            if time.monotonic() > end:
                break
            send(left, signal.SIGKILL)
            self._sleep(0.05)
        self._sleep(0.0)

    def _write_end(self, verdict: str | None) -> None:
        code = signal_number = None
        if self.status is not None:
            if os.WIFSIGNALED(self.status):
                signal_number = os.WTERMSIG(self.status)
            else:
                code = os.WEXITSTATUS(self.status)
        state = verdict or ("COMPLETED" if code == 0 else "FAILED")
        ended = time.time()
        for _ in range(WRITE_TRIES):
            try:
                self.write(state=state, exit_code=code, signal=signal_number, ended=ended)
            except OSError:
                time.sleep(1.0)
            else:
                return


def _detach(log: Path, told: int) -> None:
    """Leave the caller's session and its open files, but for the pipe on which it waits."""
    os.setsid()
    for descriptor, path, flags in (
        (0, "/dev/null", os.O_RDONLY),
        (1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, flags, 0o666)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(1, 2)
    os.set_inheritable(told, False)


def _parse(arguments: list[str]) -> Supervisor:
    parser = argparse.ArgumentParser(prog="hpc-launch local supervisor", description="Runs one local job.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--job-id", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--time-limit", type=float, help="seconds")
    parser.add_argument("--signal-before", type=float, help="seconds")
    given = parser.parse_args(arguments)
    return Supervisor(given.folder.absolute(), given.job_id, given.name, given.time_limit, given.signal_before)


def main(arguments: list[str]) -> int:
    """Start the job and return 0, with the supervisor left behind; with a message 1, or EX_IOERR for a full disk."""
    supervisor = _parse(arguments)
    # Blocked before there are two processes, so that a cancel cannot come too early.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    listening, told = os.pipe()
    if os.fork():
        os.close(told)
        with open(listening, encoding="utf-8") as stream:
            answer = stream.read()
        sys.stderr.write(answer.removeprefix("started"))
        return 0 if answer == "started" else os.EX_IOERR if answer.startswith(NOT_WRITTEN) else 1
    os.close(listening)
    try:
        _detach(supervisor.folder / "batch.log", told)
        supervisor.start()
    except OSError as error:
        # Too many processes is no fault of the disk.
        what = "cannot start the job" if error.errno in (errno.EAGAIN, errno.ENOMEM) else NOT_WRITTEN
        os.write(told, f"{what}: {error}\n".encode())
        os._exit(1)
    os.write(told, b"started")
    os.close(told)
    supervisor.run()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
