"""The local machine as a scheduler: each job has a supervisor process, which records the job's state in files."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from hpc_launch.agent.job_processes import send
from hpc_launch.base.errors import NotWritten, SubmitRefused, SubmitUnknown, Unreachable
from hpc_launch.base.installed import module_command
from hpc_launch.base.json_records import as_type, write_record
from hpc_launch.base.run_program import run_program
from hpc_launch.job.hostlist import compress
from hpc_launch.schedulers.job_files import JOB_ID, JOB_MARKER, LOCAL_STATE, hosts_of
from hpc_launch.schedulers.local import local_jobs
from hpc_launch.schedulers.local.local_jobs import LocalState, read_local_state
from hpc_launch.schedulers.local.supervisor import IN_ALLOCATION, SUPERVISOR, processes_of_job
from hpc_launch.schedulers.scheduler import JobRecord, Scheduler, Submission

START_TIMEOUT_S = 60.0
"""Seconds a supervisor may take to start: usually 0.1 s, but starting Python takes longer on a loaded machine."""


class LocalScheduler(Scheduler):
    """Runs jobs on this machine, or with `in_allocation` Slurm jobs inside the allocation of this process. Ignores the
    submission's sbatch options."""

    def __init__(self, *, in_allocation: bool = False) -> None:
        self._in_allocation = in_allocation

    def submit(self, submission: Submission) -> str:
        folder, hosts = submission.folder.absolute(), hosts_of(submission.script)[0]
        try:
            submission.write_script()
            entry = local_jobs.register(submission.job_name, folder, hosts)
        except (OSError, UnicodeError) as error:
            raise NotWritten(f"cannot prepare the job: {error}") from error
        try:
            code, said = self.start(entry, submission)
            if code != 0:
                kind = NotWritten if code == os.EX_IOERR else SubmitRefused
                raise kind(said or "the job's supervisor did not start")
        except subprocess.TimeoutExpired:
            raise SubmitUnknown(f"{hosts[0] if hosts else 'the supervisor'} did not answer in time") from None
        except SubmitRefused:
            self.forget(entry)
            raise
        except OSError as error:
            self.forget(entry)
            raise SubmitRefused(f"cannot start the job's supervisor: {error}") from error
        return entry.job_id

    def start(self, entry: local_jobs.LocalJob, submission: Submission) -> tuple[int, str]:
        """Start the supervisor of a job; returns the exit code and the last message. Raises SubmitRefused,
        SubmitUnknown, OSError, TimeoutExpired."""
        environment = submission.job_environment()
        if self._in_allocation:
            environment = {**os.environ, **submission.environment, IN_ALLOCATION: "1"}
            environment = {key: value for key, value in environment.items() if key not in (JOB_ID, JOB_MARKER)}
        done = run_program(supervisor_command(entry, submission), START_TIMEOUT_S, environment=environment)
        return done.returncode, "".join(done.stderr.strip().splitlines()[-1:])

    def forget(self, entry: local_jobs.LocalJob) -> None:
        """Undo the registration of a job that did not start."""
        local_jobs.forget(entry.job_id)

    def test_only(self, submission: Submission) -> str:
        hosts = ", ".join(hosts_of(submission.script)[0])
        return f"{submission.job_name} would start immediately on {hosts or socket.gethostname()}"

    def find(self, job_name: str) -> list[JobRecord]:
        records = []
        for entry in local_jobs.entries():
            if entry.name != job_name:
                continue
            record = self.record(entry)
            if record is not None:
                records.append(record)
            elif entry.being_submitted:
                raise Unreachable(f"{job_name} is being submitted by process {entry.submitter}")
        return records

    def query(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        del fresh  # files are always read
        records = {job_id: self.record(entry) for job_id in job_ids if (entry := local_jobs.lookup(job_id)) is not None}
        return {job_id: record for job_id, record in records.items() if record is not None}

    def record(self, entry: local_jobs.LocalJob) -> JobRecord | None:
        """The record of a job; None until its supervisor has written its state."""
        state = current_state(entry.job_id, entry.folder)
        if state is not None and not state.ended_for_good and not state.here:
            state = replace(state, reason=f"on host {state.place}; only there it is known whether it still runs")
        return record_of(entry, state, "local") if state is not None else None

    def warn(self, job_id: str, *, preempt: bool = False) -> None:
        state = _state(job_id)
        if preempt or state is None or state.shell is None:
            hint = "it has ended, or it asks for a preemption signal, which only Slurm sends"
            raise Unreachable(f"cannot warn {job_id}", hint)
        if not state.here:
            raise Unreachable(f"{job_id} runs on {state.place}", "run the command there")
        signal_job(state, "warn")

    def cancel(self, job_id: str) -> None:
        state = _state(job_id)
        if state is None or state.ended_for_good:
            return
        if not state.here:
            raise Unreachable(f"{job_id} runs on {state.place}", "run `hpc-launch cancel` there")
        signal_job(state, "cancel")


def supervisor_command(entry: local_jobs.LocalJob, submission: Submission) -> list[str]:
    """The command that starts a job's supervisor."""
    command = [*module_command(SUPERVISOR), str(entry.folder)]
    command += ["--job-id", entry.job_id, f"--name={entry.name}"]
    limits = (("--time-limit", submission.time_limit_s), ("--signal-before", submission.signal_before_s))
    return [*command, *(f"{option}={float(value)}" for option, value in limits if value)]


def _state(job_id: str) -> LocalState | None:
    """The state of a job, if it has one."""
    entry = local_jobs.lookup(job_id)
    return read_local_state(entry.folder, job_id) if entry is not None else None


def signal_job(state: LocalState, action: str) -> None:
    """Cancel or warn a job of this host."""
    if action == "cancel" and state.supervised and state.pid is not None:
        send(state.pid, signal.SIGTERM)
    if action == "warn" and (shell := state.batch_shell) is not None:
        send(shell, signal.SIGUSR1)


def current_state(job_id: str, folder: Path) -> LocalState | None:
    """The state of a job; None until its supervisor has written it. On its host, the loss of the supervisor ends it."""
    state = read_local_state(folder, job_id)
    if state is None or state.ended_for_good or not state.here or state.supervised:
        return state
    return _record_lost_supervisor(folder, state)


def state_after(action: str, job_id: str, folder: Path) -> LocalState | None:
    """The state of a job of this host, after the action."""
    state = current_state(job_id, folder)
    if state is not None and not state.ended_for_good and state.here:
        signal_job(state, action)
    return state


def record_of(entry: local_jobs.LocalJob, state: LocalState, source: str) -> JobRecord:
    """The record of a job in this state."""
    known, nodes = as_type(state, JobRecord, from_attributes=True), compress(entry.hosts) if entry.hosts else state.host
    return replace(known, job_id=entry.job_id, source=source, as_of=time.time(), nodes=nodes, restarts=0)


def _record_lost_supervisor(folder: Path, before: LocalState) -> LocalState:
    """Record the end of a job whose supervisor is gone and kill its remaining processes."""
    # The supervisor may have written the job's end since our last read.
    state = read_local_state(folder, before.job_id) or before
    if state.ended_for_good:
        return state
    for pid in processes_of_job(state.job_id, str(folder), state.shell):
        send(pid, signal.SIGKILL)
    reason = f"the job's supervisor (process {state.pid}) was killed or the machine rebooted"
    state = replace(state, state="NODE_FAIL", ended=time.time(), reason=reason)
    with contextlib.suppress(OSError):
        write_record(folder / LOCAL_STATE, state)
    return state
