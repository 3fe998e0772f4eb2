"""The supervisor of one local job, in place of slurmctld and slurmd on a cluster.

    python -m hpc_launch.schedulers.local.supervisor ATTEMPT_FOLDER --job-id ID --name NAME [--time-limit SECONDS]
        [--signal-before SECONDS]

The command returns when the job runs; the supervisor continues in its own session. It records the job's state in
ATTEMPT_FOLDER/local.json, runs `bash ATTEMPT_FOLDER/script.sh ATTEMPT_FOLDER` in a separate session with its output
appended to ATTEMPT_FOLDER/batch.log, and exits when no process of the job is left (supervised_job.py).

To start fast it uses only the standard library and its neighbouring modules.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from pathlib import Path

from hpc_launch.schedulers.job_files import BATCH_LOG
from hpc_launch.schedulers.local.supervised_job import WATCHED, SupervisedJob

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
