"""What the other hosts ask of a job on its first host, and what that sees of the others.

    python -m hpc_launch.schedulers.ssh.on_first_host state|cancel|warn JOB_ID ATTEMPT_FOLDER
    python -m hpc_launch.schedulers.ssh.on_first_host check RUN_FOLDER HOST...

`check` prints a line of JSON for each host that cannot be reached from here, or that another run uses. The others print
the state as one line of JSON, or nothing if there is none. On this host, the loss of the supervisor is noticed and ends
the job.

Who uses the hosts of a site without a scheduler, by the leases that lie on them.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hpc_launch.base.errors import SubmitRefused, Unreachable
from hpc_launch.base.installed import AGENT, module_command
from hpc_launch.schedulers.local.local_jobs import LocalJob
from hpc_launch.schedulers.local.local_scheduler import current_state, end_job, warn_job
from hpc_launch.schedulers.ssh.ssh_command import TIMEOUT_S, HostAnswer, HostReply, ask_hosts, exec_line, on_host

PROGRAM = AGENT / "lease.py"
QUERY_S = 20.0
_Text = Annotated[str, Meta(max_length=100)]


class LeaseHolder(Struct, frozen=True):
    """A run that uses a host, by its lease. `user` is the owner of the file; the rest is what that user wrote."""

    user: _Text
    run: _Text
    job_id: _Text
    since: Annotated[float, Meta(gt=0, lt=1e11)]
    """Seconds since the epoch, by the clock of the host."""


class HostLeases(Struct, frozen=True):
    """The holders of a host, the first one first; or why they are unknown."""

    holders: tuple[LeaseHolder, ...] = ()
    fault: str | None = None

    @property
    def state(self) -> str:
        """`used`, `free` or `unknown`."""
        return "unknown" if self.fault is not None else "used" if self.holders else "free"


def leases_of(hosts: Sequence[str], timeout_s: float = QUERY_S) -> dict[str, HostLeases]:
    """The holders of each host, asked at the same time. A host that does not answer is not an error."""
    return {host: _read(reply) for host, reply in ask_hosts(hosts, PROGRAM, ["--json"], timeout_s).items()}


def _read(reply: HostReply) -> HostLeases:
    if reply.fault is not None:
        return HostLeases(fault=reply.fault)
    try:
        return HostLeases(msgspec.json.decode(reply.text, type=tuple[LeaseHolder, ...]))
    except msgspec.MsgspecError as error:
        return HostLeases(fault=f"unexpected answer: {error}")


def holders_of(run: str, leases: Mapping[str, HostLeases]) -> dict[str, list[str]]:
    """The hosts of a run by their state for it, in words."""
    states: dict[str, list[str]] = {}
    for host, found in leases.items():
        if found.fault is not None:
            words = f"lease unknown: {found.fault}"
        elif any(one.run == run for one in found.holders):
            words = "leased by this run"
        elif found.holders:
            words = f"in use by {found.holders[0].user}: run {found.holders[0].run}"
        else:
            words = "not leased"
        states.setdefault(words, []).append(host)
    return states


_NAME = "hpc_launch.schedulers.ssh.on_first_host"
_LONGEST = 500


class HostProblem(Struct, frozen=True):
    """Why a run cannot use a host. The message of a finding begins with its code."""

    host: str
    message: str
    hint: str | None = None


def ask_first_host(host: str, words: Sequence[str], timeout_s: float = TIMEOUT_S) -> HostAnswer:
    """Run this module on the first host of a job. Raises Unreachable."""
    try:
        return on_host(host, [exec_line([*module_command(_NAME), *words])], timeout_s)
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{host} did not answer in time") from None
    except OSError as error:
        raise Unreachable(f"cannot run ssh: {error}") from error


def host_problems(hosts: Sequence[str], run_folder: str = "") -> list[HostProblem]:
    """What is wrong with these hosts, seen from here and from the first one; leases only with a run folder.

    Raises SubmitRefused if the first host cannot tell.
    """
    first = hosts[0]
    try:
        answer = ask_first_host(first, ["check", run_folder, *hosts])
    except Unreachable as error:
        return [HostProblem(first, str(error), error.hint)]
    if answer.code != 0:
        raise SubmitRefused(f"{first} cannot check the hosts: {answer.error or f'exit code {answer.code}'}")
    try:
        found = [msgspec.json.decode(line, type=HostProblem) for line in answer.output.splitlines() if line.strip()]
    except msgspec.MsgspecError as error:
        raise SubmitRefused(f"{first} gave an unexpected answer: {error}") from error
    return [HostProblem(_plain(one.host), _plain(one.message), one.hint and _plain(one.hint)) for one in found]


def _plain(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)[:_LONGEST]


def problem_of(host: str, run_folder: str, first: str) -> HostProblem | None:
    """Why a run cannot use a host, seen from the first one, on which this runs; None if it can."""
    words = ["true"]
    if run_folder:  # as text: the host may not have the run folder
        words = ["python3", "-I", "-c", PROGRAM.read_text("utf-8"), os.path.basename(run_folder)]
    try:
        answer = on_host(host, [exec_line(words)], timeout_s=40, origin=first)
    except Unreachable as error:
        return HostProblem(host, str(error), error.hint)
    except (OSError, subprocess.TimeoutExpired):
        return HostProblem(host, f"{host} does not answer over ssh")
    if answer.code != 0:
        return HostProblem(host, f"{host}: {answer.error or f'exit code {answer.code}'}")
    used = answer.output.strip().splitlines()
    hint = "exclude it (`--set exclude=[HOST]`), or wait for the other run"
    return HostProblem(host, f"{host}: {used[0]}", hint) if used else None


def main(arguments: list[str]) -> int:
    """Do it."""
    if arguments[0] == "check":
        _, run_folder, first = arguments[:3]
        with ThreadPoolExecutor(max_workers=32) as pool:
            found = pool.map(lambda host: problem_of(host, run_folder, first), arguments[2:])
            for problem in filter(None, found):
                sys.stdout.write(msgspec.json.encode(problem).decode() + "\n")
        return 0
    action, job_id, folder = arguments
    here = socket.gethostname()
    state = current_state(
        LocalJob(job_id=job_id, name="", path=folder, host=here, submitted=0.0, submitter=os.getpid())
    )
    if state is None:
        return 0
    if not state.over and state.here:
        if action == "cancel":
            end_job(state)
        elif action == "warn":
            warn_job(state)
    sys.stdout.write(msgspec.json.encode(state).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
