"""Hosts reached by ssh, as a scheduler: jobs start at once, each under a supervisor on its first host.

The supervisor is the local scheduler's (schedulers/local): it runs the same script, whose step starts the other hosts
by ssh, and survives the client. The run folder is on storage that all hosts share.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from hpc_launch.agent.fan_out import SSH_FAILED
from hpc_launch.base.errors import NotWritten, SubmitRefused, SubmitUnknown, Unreachable
from hpc_launch.base.files import write_atomic
from hpc_launch.base.json_records import json_as_type
from hpc_launch.job.shell_text import quote, visible
from hpc_launch.schedulers.job_files import ELSEWHERE, FIRST, JOB_ID, JOB_MARKER, LOCAL_STATE, hosts_of, spares_of
from hpc_launch.schedulers.local import local_jobs
from hpc_launch.schedulers.local.local_jobs import Elsewhere, LocalJob, LocalState, read_local_state
from hpc_launch.schedulers.local.local_scheduler import LocalScheduler, record_of, state_after, supervisor_command
from hpc_launch.schedulers.local.supervisor import SUPERVISOR
from hpc_launch.schedulers.scheduler import JobRecord, PartlyUnreachable, Submission
from hpc_launch.schedulers.slurm.run_command import submission_environment
from hpc_launch.schedulers.ssh.ssh_hosts import (
    HERE,
    OTHER_MACHINE,
    REFUSED,
    SSH,
    TIMEOUT_S,
    ask_first_host,
    call,
    exec_line,
    host_problems,
    on_host,
    problems_in,
    refused,
)

INTERVAL_S = 10.0
"""How often a host is asked for a job that runs; its files are read at any time. And how long a host
that did not answer is left alone."""
QUERY_S = 20.0
"""Limit of the query of one host, in seconds."""
START_S = 2 * TIMEOUT_S
"""Limit of the check of all hosts and the start of the supervisor."""
MAX_QUERIES = 64
"""Hosts that are queried at the same time."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OF_THE_HOST = re.compile(
    r"(SSH_.*|XDG_(SESSION|RUNTIME)_.*|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|DBUS_.*|TMUX.*|STY|TERM.*|HOSTNAME|HOST|"
    r"PWD|OLDPWD|SHLVL|_|BASH_ENV|ENV|BASHOPTS|SHELLOPTS|UID|EUID|PPID)\Z"
)
"""Variables that describe the submitting host or shell."""


class SshScheduler(LocalScheduler):
    """Runs jobs on the hosts that their scripts name (`#HOST`). The query of one host takes at most `query_s`."""

    def __init__(self, query_s: float = QUERY_S) -> None:
        super().__init__()
        self._query_s = query_s
        self._asked: dict[str, float] = {}
        self._silent: dict[str, tuple[float, Unreachable]] = {}

    def submit(self, submission: Submission) -> str:
        if not hosts_of(submission.script)[0]:
            raise SubmitRefused("the script names no host")
        return super().submit(submission)

    def start(self, entry: LocalJob, submission: Submission) -> tuple[int, str]:
        """By one connection to the first host, unless that is this machine: it checks the hosts, and becomes the
        supervisor."""
        host, folder, command = entry.hosts[0], entry.folder, supervisor_command(entry, submission)
        shared = hosts_of(submission.script)[1]
        spares = spares_of(submission.script) if folder.name == FIRST else ()  # later it goes on without one
        words = ["" if shared else str(folder.parents[1]), entry.job_id, *entry.hosts, *spares]
        begin = exports(submission.environment)
        words += command[command.index(SUPERVISOR) :]
        try:
            answer = None
            if _has_address(host):
                answer = on_host(host, [*begin, call("start-here", *words)], START_S, ssh=HERE)
            if answer is None or answer.code == OTHER_MACHINE:
                answer = on_host(host, [*begin, call("start", *words)], START_S)
            if answer.code == os.EX_IOERR and hand_over_run(folder, host, entry.job_id):
                back = quote(str(folder.parents[1] / ELSEWHERE))  # the host may have had the run before
                answer = on_host(host, [f"rm -f {back}", *begin, exec_line(command)])
        except Unreachable as error:
            raise SubmitRefused(str(error), error.hint) from error
        if answer.code == SSH_FAILED:
            raise SubmitUnknown(f"lost the connection to {host}: {answer.error}")
        if answer.code == REFUSED and (problems := problems_in(answer, host)):
            raise refused(problems)
        return answer.code, answer.error and f"{host}: {answer.error}"

    def forget(self, entry: LocalJob) -> None:
        super().forget(entry)
        with suppress(OSError):  # the run is here
            (entry.folder.parents[1] / ELSEWHERE).unlink(missing_ok=True)

    def must_wait(self, script: str, run_folder: Path) -> str | None:
        hosts, shared = hosts_of(script)
        return _refusal(hosts, "" if shared else str(run_folder.absolute())) or None

    def nodes(self, names: Sequence[str]) -> dict[str, str]:
        return {name: _refusal((name,), "") for name in names}

    def query(self, job_ids: Iterable[str], *, fresh: bool = False) -> dict[str, JobRecord]:
        if fresh:
            self._asked.clear()
            self._silent.clear()
        by_host: dict[str, list[LocalJob]] = {}
        for entry in filter(None, map(local_jobs.lookup, job_ids)):
            by_host.setdefault(entry.hosts[0] if entry.hosts else "", []).append(entry)
        records: dict[str, JobRecord] = {}
        errors: dict[str, str] = {}
        with ThreadPoolExecutor(max_workers=max(1, min(len(by_host), MAX_QUERIES))) as pool:
            for found, failed in pool.map(self._on_one_host, by_host.values()):
                records |= found
                errors |= failed
        if errors:
            raise PartlyUnreachable(records, errors)
        return records

    def _on_one_host(self, entries: Sequence[LocalJob]) -> tuple[dict[str, JobRecord], dict[str, str]]:
        """The records of the jobs of one first host, and why there is none, by job."""
        records, errors = {}, {}
        for entry in entries:
            try:
                record = self.record(entry)
            except Unreachable as error:
                errors[entry.job_id] = str(error)
            else:
                if record is not None:
                    records[entry.job_id] = record
        return records, errors

    def record(self, entry: LocalJob) -> JobRecord | None:
        if not entry.hosts:
            return super().record(entry)
        state = read_local_state(entry.folder, entry.job_id)
        asked = self._asked.get(entry.job_id)
        if (state is None or not state.ended_for_good) and (asked is None or time.monotonic() - asked > INTERVAL_S):
            state = self._ask_again(entry)
            self._asked[entry.job_id] = time.monotonic()
        return record_of(entry, state, "ssh") if state is not None else None

    def warn(self, job_id: str, *, preempt: bool = False) -> None:
        entry = local_jobs.lookup(job_id)
        if preempt or entry is None:
            raise Unreachable(f"cannot warn {job_id}", "only Slurm sends a preemption signal")
        self._ask(entry, "warn")

    def cancel(self, job_id: str) -> None:
        entry = local_jobs.lookup(job_id)
        state = read_local_state(entry.folder, job_id) if entry is not None else None
        if entry is None or (state is not None and state.ended_for_good):
            return
        self._asked.pop(job_id, None)
        self._ask(entry, "cancel")

    def _ask_again(self, entry: LocalJob) -> LocalState | None:
        """The job's state by its first host, unless that one did not answer just now. Raises Unreachable."""
        host = entry.hosts[0]
        since, error = self._silent.get(host, (0.0, None))
        if error is not None and time.monotonic() - since < INTERVAL_S:
            raise error
        try:
            return self._ask(entry, "state", self._query_s)
        except Unreachable as failed:
            self._silent[host] = time.monotonic(), failed
            raise

    @staticmethod
    def _ask(entry: LocalJob, action: str, timeout_s: float = TIMEOUT_S) -> LocalState | None:
        """The job's state by its first host, after the action. Raises Unreachable."""
        if is_here(entry):
            return state_after(action, entry.job_id, entry.folder)
        host = entry.hosts[0]
        answer = ask_first_host(host, [action, entry.job_id, str(entry.folder)], timeout_s)
        if answer.code != 0:
            raise Unreachable(f"{host}: {answer.error or f'exit code {answer.code}'}")
        if not answer.output.strip():
            return None
        try:
            return json_as_type(answer.output, LocalState)
        except msgspec.MsgspecError as error:
            raise Unreachable(f"{host} gave an unexpected answer: {error}") from error


def _has_address(host: str) -> bool:
    """Whether a host's name is an address of this machine, which may also lead elsewhere, by ssh's configuration."""
    with suppress(OSError, UnicodeError):
        for family, kind, *_, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as one:
                one.bind(address)  # possible with one's own addresses only
                return True
    return False


def is_here(entry: LocalJob) -> bool:
    """Whether the supervisor of a job is this user's, and on this machine: what concerns the job needs no ssh."""
    state = read_local_state(entry.folder, entry.job_id)
    with suppress(OSError):
        return state is not None and state.here and os.stat(entry.folder / LOCAL_STATE).st_uid == os.getuid()
    return False


def command_there(entry: LocalJob, words: Sequence[str]) -> tuple[list[str], str]:
    """The command that runs another one on the first host of a job, and the input that it needs before."""
    if is_here(entry):
        return [*words], ""
    lines = [*exports(), f"exec {' '.join(map(quote, words))}", ""]
    return [*SSH, "-oControlMaster=no", "--", entry.hosts[0], "bash -s"], "\n".join(lines)


def hand_over_run(attempt: Path, host: str, job_id: str) -> bool:
    """Copy the run of an attempt to a host, and note where it is; false if the host has the same folder.

    Raises NotWritten.
    """
    from hpc_launch.agent.copies import CopyError, give_run

    try:
        if not give_run(str(attempt), host, job_id):
            return False
    except (CopyError, OSError, subprocess.SubprocessError) as error:
        hint = "choose a `run_dir` that you may create on every host"
        raise NotWritten(f"cannot copy the run to {host}: {visible(str(error))}", hint) from error
    write_atomic(attempt.parents[1] / ELSEWHERE, msgspec.json.encode(Elsewhere(host)).decode())
    return True


def _refusal(hosts: tuple[str, ...], run_folder: str) -> str:
    """Why a run cannot use hosts, or '': the first one cannot reach one, or, with `run_folder`, another run uses it."""
    try:
        problems = host_problems(hosts, run_folder)
    except SubmitRefused as error:
        return str(error)
    return str(refused(problems)) if problems else ""


def exports(more: Mapping[str, str] | None = None) -> list[str]:
    """Bash that sets the environment of this process, and `more`, on a host, as Slurm's `--export=ALL` does."""
    variables = {
        name: value
        for name, value in submission_environment().items()
        if _NAME.match(name) and not _OF_THE_HOST.match(name) and name not in (JOB_ID, JOB_MARKER)
    }
    variables |= more or {}
    return ["set +o history", *(f"export {name}={quote(value)}" for name, value in variables.items())]
