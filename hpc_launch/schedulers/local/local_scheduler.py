"""The local machine as a scheduler: each job has a supervisor process, which records the job's state in files."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hpc_launch.base.errors import NotWritten, SubmitRefused, SubmitUnknown, Unreachable
from hpc_launch.base.files import read_json, write_atomic, write_json
from hpc_launch.schedulers.local import local_jobs
from hpc_launch.schedulers.local.processes import (
    IN_ALLOCATION,
    JOB_ID,
    JOB_MARKER,
    SUPERVISOR,
    processes_of_job,
    send_signal,
    start_of,
)
from hpc_launch.schedulers.scheduler import ENDED_STATES, JobRecord, Submission
from hpc_launch.schedulers.slurm.command_environment import submission_environment

START_TIMEOUT_S = 60.0
"""Seconds a supervisor may take to start: usually 0.1 s, but starting Python takes longer on a loaded machine."""


class LocalScheduler:
    """Runs jobs on this machine. Ignores the submission's sbatch options.

    Args:
        in_allocation: Run a Slurm job inside the allocation of this process.
    """

    def __init__(self, *, in_allocation: bool = False) -> None:
        self._in_allocation = in_allocation

    def submit(self, submission: Submission) -> str:
        folder = submission.folder.absolute()
        try:
            script = folder / "script.sh"
            if not script.exists() or script.read_bytes() != submission.script.encode("utf-8", "surrogateescape"):
                write_atomic(script, submission.script)
            entry = local_jobs.register(submission.job_name, folder)
        except (OSError, UnicodeError) as error:
            raise NotWritten(f"cannot prepare the job: {error}") from error
        try:
            done = subprocess.run(
                _command(entry),
                env=_environment(submission, in_allocation=self._in_allocation),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=START_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SubmitUnknown(f"the job's supervisor did not start within {START_TIMEOUT_S:g} s") from None
        except OSError as error:
            local_jobs.forget(entry.job_id)
            raise SubmitRefused(f"cannot start the job's supervisor: {error}") from error
        if done.returncode != 0:
            local_jobs.forget(entry.job_id)
            kind = NotWritten if done.returncode == os.EX_IOERR else SubmitRefused
            raise kind((done.stderr.strip().splitlines() or ["the job's supervisor did not start"])[-1])
        return entry.job_id

    def test_only(self, submission: Submission) -> str:
        return f"{submission.job_name} would start immediately on {socket.gethostname()}"

    def find(self, job_name: str) -> list[JobRecord]:
        records = []
        for entry in local_jobs.entries():
            if entry.name != job_name:
                continue
            record = _record(entry)
            if record is not None:
                records.append(record)
            elif entry.being_submitted:
                raise Unreachable(f"{job_name} is being submitted by process {entry.submitter}")
        return records

    def query(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        del fresh  # files are always read
        records = {job_id: _record(entry) for job_id in job_ids if (entry := local_jobs.lookup(job_id)) is not None}
        return {job_id: record for job_id, record in records.items() if record is not None}

    def warn(self, job_id: str, *, preempt: bool = False) -> None:
        entry = local_jobs.lookup(job_id)
        value = None if entry is None else read_json(entry.folder / "local.json")
        shell = None if value is None else value.get("shell")
        if preempt or value is None or value.get("job_id") != job_id or not isinstance(shell, int):
            hint = "it has ended, or it asks for a preemption signal, which only Slurm sends"
            raise Unreachable(f"cannot warn {job_id}", hint)
        if value.get("host") != socket.gethostname():
            raise Unreachable(f"{job_id} runs on {value.get('host')}", "run the command on that host")
        if _supervised(value):
            with contextlib.suppress(ProcessLookupError):
                os.kill(shell, signal.SIGUSR1)

    def cancel(self, job_id: str) -> None:
        entry = local_jobs.lookup(job_id)
        value = None if entry is None else read_json(entry.folder / "local.json")
        if value is None or value.get("job_id") != job_id or value.get("state") in ENDED_STATES:
            return
        if value.get("host") != socket.gethostname():
            raise Unreachable(f"{job_id} runs on {value.get('host')}", "run `hpc-launch cancel` on that host")
        if _supervised(value):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(value["pid"]), signal.SIGTERM)

    def preempted(self, job_id: str) -> bool:
        del job_id
        return False

    def cluster(self) -> str | None:
        return None  # jobs of other machines are unknown here

    def down(self, nodes: Sequence[str]) -> dict[str, str]:
        del nodes  # all are this machine
        return {}

    def size(self, partition: str | None) -> int | None:
        del partition  # there are no nodes to exclude
        return None


def _command(entry: local_jobs.LocalJob) -> list[str]:
    plan = read_json(entry.folder / "plan.json") or {}
    command = [sys.executable, "-m", SUPERVISOR, str(entry.folder)]
    command += ["--job-id", entry.job_id, f"--name={entry.name}"]
    for key, option in (("time_limit_s", "--time-limit"), ("signal_before_s", "--signal-before")):
        if plan.get(key):
            command.append(f"{option}={float(plan[key])}")
    return command


def _environment(submission: Submission, *, in_allocation: bool) -> dict[str, str]:
    """The job's environment: the variables of an enclosing job removed, as on Slurm, and the secrets added."""
    if in_allocation:
        variables = {**os.environ, **submission.environment, IN_ALLOCATION: "1"}
    else:
        variables = submission_environment(submission.environment)
    return {key: value for key, value in variables.items() if key not in {JOB_ID, JOB_MARKER}}


def _supervised(value: dict[str, Any]) -> bool:
    """Whether the supervisor that wrote this file is alive on this host."""
    pid, began = value.get("pid"), value.get("pid_start")
    return isinstance(pid, int) and began is not None and start_of(pid) == began


def _record(entry: local_jobs.LocalJob) -> JobRecord | None:
    """The record of a job; None until its supervisor has written its state."""
    path = entry.folder / "local.json"
    value = read_json(path)
    if value is None or value.get("job_id") != entry.job_id:
        return None
    reason = value.get("reason")
    if value["state"] not in ENDED_STATES:
        if value.get("host") != socket.gethostname():
            reason = f"on host {value.get('host')}; only that host knows whether it still runs"
        elif not _supervised(value):
            value = _record_lost_supervisor(entry, path)
            reason = value.get("reason")
    return JobRecord(
        job_id=entry.job_id,
        state=str(value["state"]),
        source="local",
        as_of=time.time(),
        name=value.get("name"),
        reason=reason,
        exit_code=value.get("exit_code"),
        signal=value.get("signal"),
        nodes=value.get("host"),
        submitted=value.get("submitted"),
        started=value.get("started"),
        ended=value.get("ended"),
        restarts=0,
    )


def _record_lost_supervisor(entry: local_jobs.LocalJob, path: Path) -> dict[str, Any]:
    """Record the end of a job whose supervisor is gone and kill its remaining processes."""
    # The supervisor may have written the job's end since our last read.
    value = read_json(path) or {}
    if value.get("state") in ENDED_STATES:
        return value
    remaining = processes_of_job(entry.job_id, str(entry.folder))
    send_signal([pid for pid in remaining if pid != os.getpid()], signal.SIGKILL)
    value |= {
        "state": "NODE_FAIL",
        "ended": time.time(),
        "reason": f"the job's supervisor (process {value.get('pid')}) was killed or the machine rebooted",
    }
    with contextlib.suppress(OSError):
        write_json(path, value)
    return value
