"""The supervisor of one local job, in place of slurmctld and slurmd on a cluster.

    python -m hpc_launch.schedulers.local.supervisor ATTEMPT_FOLDER --job-id ID --name NAME [--time-limit SECONDS]
        [--signal-before SECONDS]

The command returns when the job runs; the supervisor continues in its own session. It records the job's state in
ATTEMPT_FOLDER/local.json, runs `bash ATTEMPT_FOLDER/script.sh ATTEMPT_FOLDER` in a separate session with its output
appended to ATTEMPT_FOLDER/batch.log, and exits when no process of the job is left:

- `signal_before_s` before the limit: SIGUSR1 to the batch shell alone, as with `sbatch --signal=B:USR1@N`.
- At the limit, and on SIGTERM to the supervisor (a cancel): SIGTERM to the batch shell's process group, and SIGKILL
  to all remaining processes KILL_WAIT_S later. State TIMEOUT or CANCELLED, whatever the script's exit code.
- When the batch shell exits: the same for processes it left behind. State COMPLETED or FAILED.

As a child subreaper (prctl(2)) the supervisor stays the ancestor of every process of the job, including torchrun's
workers in their own sessions. If it dies, the batch shell gets SIGTERM. To start fast it uses only the standard library
and its neighbouring modules.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from hpc_launch.agent import write_atomic
from hpc_launch.agent.job_processes import (
    SET_CHILD_SUBREAPER,
    SET_PDEATHSIG,
    all_below,
    belonging,
    end_all,
    machine_id,
    pid_space,
    prctl,
    send,
    start_of,
    text_of,
)
from hpc_launch.schedulers.job_files import BATCH_LOG, JOB_ID, JOB_MARKER, LOCAL_STATE, SCRIPT

IN_ALLOCATION = "HPC_LAUNCH_IN_ALLOCATION"
"""Set for a Slurm script that runs inside an existing allocation, under a job id of hpc-launch."""

SUPERVISOR = "hpc_launch.schedulers.local.supervisor"
"""This module."""

KILL_WAIT_S = 10.0
"""Seconds between SIGTERM and SIGKILL (slurm.conf's KillWait; its default is 30)."""
LEFT_S = 1.0
"""Seconds in which the processes of a job may end by themselves after its script."""
WRITE_TRIES = 60
"""How often, once a second, to retry recording the end if the disk is full or unavailable."""

WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals that a supervisor blocks and waits for."""


def is_supervisor(pid: int) -> bool:
    """Whether a process is the supervisor of a local job."""
    return SUPERVISOR in text_of(f"/proc/{pid}/cmdline").split("\0")


def descendants(ancestor: int) -> list[int]:
    """All living descendants of a process, in any session.

    Excludes the supervisor of another job and its descendants: a job may submit the next one, whose supervisor stays
    a descendant while the first job's supervisor is its subreaper.
    """
    return all_below(ancestor, is_supervisor)


def processes_of_job(job_id: str, folder: str, shell: int | None = None) -> list[int]:
    """All living processes with the marker of a job, and those in the session of its batch shell that wrote over their
    environment."""
    return belonging([f"{JOB_MARKER}={job_id}:{folder}"], {str(shell)})


class SupervisedJob:
    """A job that this process starts, limits and records."""

    def __init__(
        self, folder: Path, job_id: str, name: str, time_limit_s: float | None, signal_before_s: float | None
    ) -> None:
        self.folder, self.job_id, self.name = folder, job_id, name
        self.time_limit_s, self.signal_before_s = time_limit_s, signal_before_s
        self.state: dict[str, Any] = {}
        self.shell = 0
        self.status: int | None = None
        """The batch shell's wait(2) status; None while it runs."""

    def write(self, **changes: Any) -> None:
        """Update local.json atomically. Raises OSError."""
        self.state |= changes
        write_atomic(self.folder / LOCAL_STATE, json.dumps(self.state, indent=2))

    def start(self) -> None:
        """Start the batch shell and record it. Raises OSError."""
        prctl(SET_CHILD_SUBREAPER, 1)
        self.write(
            job_id=self.job_id,
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            pid_start=start_of(os.getpid()),
            space=pid_space(),
            machine=machine_id(),
            state="PENDING",
            submitted=time.time(),
        )
        supervisor = os.getpid()
        self.shell = os.fork()
        if self.shell == 0:
            try:
                self._exec_shell(supervisor)
            except BaseException as error:
                os.write(2, f"hpc-launch: cannot start bash: {error}\n".encode())
            finally:
                os._exit(127)
        with contextlib.suppress(OSError):
            # The job runs: a disk that fills up now must not make the submission look failed.
            self.write(state="RUNNING", started=time.time(), shell=self.shell)

    def _exec_shell(self, supervisor: int) -> None:
        prctl(SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != supervisor:
            os._exit(143)  # the supervisor died before prctl took effect
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.environ |= {JOB_ID: self.job_id, JOB_MARKER: f"{self.job_id}:{self.folder}"}
        os.execvp("bash", ["bash", str(self.folder / SCRIPT), str(self.folder)])  # noqa: S606 - bash is one

    def run(self) -> None:
        """Supervise the job to its end and leave no process behind."""
        started = time.monotonic()
        limit = started + self.time_limit_s if self.time_limit_s else None
        warn = limit - self.signal_before_s if limit and self.signal_before_s else None
        end_state = None
        while self.status is None and end_state is None:
            now = time.monotonic()
            if warn is not None and now >= warn:
                send(self.shell, signal.SIGUSR1)
                warn = None
            if limit is not None and now >= limit:
                end_state = "TIMEOUT"
                break
            deadlines = [at for at in (warn, limit) if at is not None]
            if self._sleep(min(deadlines) - now if deadlines else 3600.0) in {
                signal.SIGTERM,
                signal.SIGINT,
                signal.SIGHUP,
            }:
                end_state = "CANCELLED"
        self._kill_processes()
        self._write_end(end_state)
        self._run_after_hook()

    def _run_after_hook(self) -> None:
        """Run the run folder's after.sh, if there is one, in a separate process."""
        after = self.folder.parent.parent / "after.sh"
        if not os.path.isfile(after):
            return
        with contextlib.suppress(OSError):
            log = os.open(self.folder / "hook.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            if os.fork() == 0:
                try:
                    os.dup2(log, 1)
                    os.dup2(log, 2)
                    signal.pthread_sigmask(signal.SIG_SETMASK, [])
                    os.execvp("bash", ["bash", str(after), str(self.folder), "--outside"])  # noqa: S606 - bash is one
                finally:
                    os._exit(127)

    def _sleep(self, seconds: float) -> int | None:
        """Wait up to `seconds` for a signal and reap children. Returns the signal's number, if any."""
        received = signal.sigtimedwait(WATCHED, max(seconds, 0.0))
        self._reap()
        return received.si_signo if received else None

    def _reap(self) -> None:
        """Collect the children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.shell:
                    self.status = status

    def _kill_processes(self) -> None:
        """SIGTERM, to the batch shell first; after KILL_WAIT_S SIGKILL until no process of the job is left."""
        end = time.monotonic() + KILL_WAIT_S
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.shell, signal.SIGTERM)
        while self.status is None and time.monotonic() < end:
            self._sleep(0.1)
        self._note_left(time.monotonic() + LEFT_S)
        left_s = max(end - time.monotonic(), 0.0)
        end_all(lambda: descendants(os.getpid()), self._reap, left_s)
        self._reap()

    def _note_left(self, until: float) -> None:
        """Say in the job's output which processes its script leaves behind, such as a daemon."""
        while (left := descendants(os.getpid())) and time.monotonic() < until:
            self._sleep(0.1)
        if left and self.status == 0:
            names = ", ".join(f"{pid} ({text_of(f'/proc/{pid}/comm').strip()})" for pid in left[:8])
            with contextlib.suppress(OSError):
                os.write(2, f"{time.strftime('[hpc-launch %F %T]')} ends what the job left behind: {names}\n".encode())

    def _write_end(self, end_state: str | None) -> None:
        code = signal_number = None
        if self.status is not None:
            if os.WIFSIGNALED(self.status):
                signal_number = os.WTERMSIG(self.status)
            else:
                code = os.WEXITSTATUS(self.status)
        state = end_state or ("COMPLETED" if code == 0 else "FAILED")
        ended = time.time()
        for _ in range(WRITE_TRIES):
            try:
                self.write(state=state, exit_code=code, signal=signal_number, ended=ended)
            except OSError:
                time.sleep(1.0)
            else:
                return


NOT_WRITTEN = "cannot write the job's files"
"""Start of the message if the job did not start because its folder cannot be written."""


def _detach(log: Path, status_pipe: int) -> None:
    """Leave the caller's session and close its files, except the pipe that it reads the status from."""
    os.setsid()
    for descriptor, path, flags in (
        (0, "/dev/null", os.O_RDONLY),
        (1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(1, 2)
    os.set_inheritable(status_pipe, False)


def _parse(arguments: list[str]) -> SupervisedJob:
    parser = argparse.ArgumentParser(prog="hpc-launch local supervisor", description="Runs one local job.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--job-id", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--time-limit", type=float, help="seconds")
    parser.add_argument("--signal-before", type=float, help="seconds")
    args = parser.parse_args(arguments)
    return SupervisedJob(args.folder.absolute(), args.job_id, args.name, args.time_limit, args.signal_before)


def main(arguments: list[str]) -> int:
    """Start the job and return 0, leaving the supervisor running; on failure print a message and return 1, or
    EX_IOERR if a file could not be written."""
    job = _parse(arguments)
    # Block the signals before forking, so that a cancel cannot arrive too early.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    read_end, status_pipe = os.pipe()
    if os.fork():
        os.close(status_pipe)
        with open(read_end, encoding="utf-8") as stream:
            answer = stream.read()
        sys.stderr.write(answer.removeprefix("started"))
        return 0 if answer == "started" else os.EX_IOERR if answer.startswith(NOT_WRITTEN) else 1
    os.close(read_end)
    try:
        _detach(job.folder / BATCH_LOG, status_pipe)
        job.start()
    except OSError as error:
        # Too many processes is not a disk error.
        what = "cannot start the job" if error.errno in (errno.EAGAIN, errno.ENOMEM) else NOT_WRITTEN
        os.write(status_pipe, f"{what}: {error}\n".encode())
        os._exit(1)
    os.write(status_pipe, b"started")
    os.close(status_pipe)
    job.run()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
