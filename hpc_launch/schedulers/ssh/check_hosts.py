"""Whether the first host of a job reaches all hosts over ssh, and whether another run uses one."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from hpc_launch.base.errors import SubmitRefused, Unreachable
from hpc_launch.base.python_command import module_command
from hpc_launch.schedulers.ssh.leases import PROGRAM
from hpc_launch.schedulers.ssh.ssh_command import exec_line, on_host

ON_FIRST_HOST = "hpc_launch.schedulers.ssh.on_first_host"
_LONGEST = 500


class HostProblem(Struct, frozen=True):
    """Why a run cannot use a host. The message of a finding begins with its code."""

    host: str
    message: str
    hint: str | None = None


def host_problems(hosts: Sequence[str], run_folder: str = "") -> list[HostProblem]:
    """What is wrong with these hosts, seen from here and from the first one; leases only with a run folder.

    Raises SubmitRefused if the first host cannot tell.
    """
    first, words = hosts[0], ["check", run_folder, *hosts]
    try:
        answer = on_host(first, [exec_line([*module_command(ON_FIRST_HOST), *words])])
    except subprocess.TimeoutExpired:
        raise SubmitRefused(f"{first} did not answer in time") from None
    except Unreachable as error:
        return [HostProblem(first, str(error), error.hint)]
    except OSError as error:
        raise SubmitRefused(f"cannot run ssh: {error}") from error
    if answer.code != 0:
        raise SubmitRefused(f"{first} cannot check the hosts: {answer.error or f'exit code {answer.code}'}")
    try:
        found = [msgspec.json.decode(line, type=HostProblem) for line in answer.output.splitlines() if line.strip()]
    except msgspec.MsgspecError as error:
        raise SubmitRefused(f"{first} gave an unexpected answer: {error}") from error
    return [HostProblem(_plain(one.host), _plain(one.message), one.hint and _plain(one.hint)) for one in found]


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


def _plain(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)[:_LONGEST]
