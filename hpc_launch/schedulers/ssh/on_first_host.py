"""What the other hosts ask of a job on its first host, and what that sees of the others.

    python -m hpc_launch.schedulers.ssh.on_first_host state|cancel|warn JOB_ID ATTEMPT_FOLDER
    python -m hpc_launch.schedulers.ssh.on_first_host check RUN_FOLDER HOST...

`check` prints a line of JSON for each host that cannot be reached from here, or that another run uses. The others print
the state as one line of JSON, or nothing if there is none. On this host, the loss of the supervisor is noticed and ends
the job.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec import Struct

from hpc_launch.base.errors import SubmitRefused, Unreachable
from hpc_launch.base.installed import module_command
from hpc_launch.schedulers.local.local_jobs import LocalJob
from hpc_launch.schedulers.local.local_scheduler import current_state, end_job, warn_job
from hpc_launch.schedulers.ssh.leases import PROGRAM
from hpc_launch.schedulers.ssh.ssh_command import TIMEOUT_S, HostAnswer, exec_line, on_host

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
