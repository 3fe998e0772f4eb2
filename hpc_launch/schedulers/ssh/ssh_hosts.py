"""Hosts over ssh: run bash on one or a program on many, who uses them, and what is asked of a job on its first host.

    python -m hpc_launch.schedulers.ssh.ssh_hosts state|cancel|warn JOB_ID ATTEMPT_FOLDER
    python -m hpc_launch.schedulers.ssh.ssh_hosts check RUN_FOLDER HOST...
    python -m hpc_launch.schedulers.ssh.ssh_hosts start|start-here RUN_FOLDER JOB_ID HOST... SUPERVISOR ARGUMENT...

`check` prints a line of JSON for each host that cannot be reached from here, or that another run uses; `start` does so,
too, and becomes the supervisor of the job if there is none; `start-here` only where a login to the first host leads to
this user on this machine. The others print the state as one line of JSON, or nothing if there is none. On this host,
the loss of the supervisor is noticed and ends the job.

By the user's own ssh with its configuration. A host need not be trusted: what it prints at login is dropped, and its
answer is bounded. Who uses the hosts of a site without a scheduler is known by the leases that lie on them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from hpc_launch.agent.fan_out import OPTIONS, SSH_FAILED, ask, last_line, ssh_of
from hpc_launch.agent.lease import FOLDER, PREFIX
from hpc_launch.base.errors import SubmitRefused, Unreachable
from hpc_launch.base.findings import FindingCode
from hpc_launch.base.installed import AGENT, module_command, read_shipped
from hpc_launch.base.json_records import json_as_type
from hpc_launch.base.run_program import run_program
from hpc_launch.job.shell_text import quote
from hpc_launch.schedulers.local.supervisor import SUPERVISOR
from hpc_launch.schedulers.local.supervisor import main as supervise

_CODES = {
    "login": FindingCode.SSH_LOGIN_REFUSED,
    "key": FindingCode.SSH_HOST_KEY,
    "reach": FindingCode.HOST_NOT_REACHABLE,
}


class _Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of ssh_faults.yaml, which describes it."""

    words: str
    code: Literal["login", "key", "reach"]
    hint: str
    reason: str = ""


def fault_of(host: str, messages: bytes) -> tuple[FindingCode, str, str]:
    """Why a connection could not be made from here: the code, the reason, and the step that adds what is missing."""
    text = messages.decode("utf-8", "replace")
    known: list[_Fault] = read_shipped(Path(__file__).with_name("ssh_faults.yaml"), list[_Fault])
    for one in known:
        if found := re.search(one.words, text, re.IGNORECASE):
            words = found.groups()
            return _CODES[one.code], one.reason.format(*words), one.hint.format(*words, host=host)
    hint = f"`ssh -o BatchMode=yes {host} true` must work without a password"
    return FindingCode.HOST_NOT_REACHABLE, "", hint


SSH = ("ssh", "-T", *OPTIONS, "-oConnectTimeout=15", "-oServerAliveInterval=5", "-oServerAliveCountMax=3")
TIMEOUT_S = 60.0
MAX_HOSTS_AT_ONCE = 64


class HostAnswer(Struct, frozen=True):
    """What a command answered."""

    code: int
    output: str
    error: str
    """The last line of the messages, printable."""


def on_host(
    host: str, lines: Sequence[str], timeout_s: float = TIMEOUT_S, *, origin: str = "", ssh: Sequence[str] = SSH
) -> HostAnswer:
    """Run lines of bash on a host. Raises TimeoutExpired, and Unreachable if it did not start them.

    `origin`: the name of the host on which this runs, for messages that another one shows.
    """
    answer = ask(host, lines, timeout_s, ssh)
    error = "it prints too much" if answer.too_long else last_line(answer.messages)
    if answer.started:
        return HostAnswer(answer.code, answer.output.decode("utf-8", "replace"), error)
    if answer.code != SSH_FAILED and not answer.too_long:
        said = error or last_line(answer.output) or "its shell ended"
        hint = "let no start-up file of the shell there exit, or start a program, in a session without a terminal"
        raise Unreachable(f"{FindingCode.HOST_NOT_REACHABLE} {host} cannot run a command over ssh: {said}", hint)
    code, reason, hint = fault_of(host, answer.messages)
    said = f"{reason} ({error})" if reason else error or "no answer"
    way = f"cannot reach {host} over ssh{f' from {origin}' if origin else ''}"
    raise Unreachable(f"{code} {way}: {said}", hint)


def exec_line(words: Sequence[str]) -> str:
    """A line of bash that becomes a command without an input."""
    return f"exec {' '.join(map(quote, words))} </dev/null"


class HostReply(Struct, frozen=True):
    """What a host printed, or why there is no answer."""

    text: str = ""
    fault: str | None = None


def ask_hosts(
    hosts: Sequence[str], program: Path, arguments: Sequence[str], timeout_s: float
) -> Mapping[str, HostReply]:
    """The reply of each host. Each takes at most `timeout_s`; a host that does not answer is not an error."""
    source = program.read_text(encoding="utf-8")
    line = exec_line(["python3", "-I", "-c", source, *arguments])
    with ThreadPoolExecutor(max_workers=max(1, min(len(hosts), MAX_HOSTS_AT_ONCE))) as pool:
        return dict(zip(hosts, pool.map(lambda host: _ask(host, line, timeout_s), hosts), strict=True))


def _ask(host: str, line: str, timeout_s: float) -> HostReply:
    try:
        answer = on_host(host, [line], timeout_s)
    except subprocess.TimeoutExpired:
        return HostReply(fault=f"no answer over ssh within {timeout_s:g} s")
    except Unreachable as error:
        return HostReply(fault=f"{error}; {error.hint}" if error.hint else str(error))
    except OSError as error:
        return HostReply(fault=f"cannot run ssh: {error}")
    if answer.code != 0:
        return HostReply(fault=answer.error or f"exit code {answer.code}")
    return HostReply(answer.output)


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
        return HostLeases(json_as_type(reply.text, tuple[LeaseHolder, ...]))
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


TWICE_HINT = "keep one of its names"
MACHINE = "cat /proc/sys/kernel/random/boot_id; readlink /proc/self/ns/{net,pid,mnt}; echo $UID"
"""Prints in two lines what the names of one machine have in common, as agent/describe_host.py does, and in three what a
container and another user do not share with it."""
_MACHINE = re.compile(r"[0-9a-f-]{36} net:\[\d+\]")


def one_machine(machines: Mapping[str, str]) -> dict[str, str]:
    """The hosts that are the machine of an earlier one, with a message. `machines`: what MACHINE printed on each."""
    first: dict[str, str] = {}
    found = {}
    for host, text in machines.items():
        machine = " ".join(text.split()[:2])
        if _MACHINE.fullmatch(machine) and first.setdefault(machine, host) != host:
            found[host] = f"{host} and {first[machine]} are two names of one machine"
    return found


_NAME = "hpc_launch.schedulers.ssh.ssh_hosts"
REFUSED = os.EX_UNAVAILABLE
"""The exit code of `start` with problems."""
OTHER_MACHINE = os.EX_NOHOST
"""That of `start-here` where the first host is another machine."""
HERE = (
    "bash",
    "-c",
    'cd && exec env -i HOME="$HOME" USER="$USER" LOGNAME="$LOGNAME" SHELL="$SHELL" PATH="$PATH" bash -s',
)
"""In place of `ssh`: bash on this machine, as after a login."""
_LONGEST = 500


class HostProblem(Struct, frozen=True):
    """Why a run cannot use a host. The message of a finding begins with its code."""

    host: str
    message: str
    hint: str | None = None


def call(*words: str) -> str:
    """A line of bash that becomes this module."""
    return exec_line([*module_command(_NAME), *words])


def ask_first_host(host: str, words: Sequence[str], timeout_s: float = TIMEOUT_S) -> HostAnswer:
    """Run this module on the first host of a job. Raises Unreachable."""
    try:
        return on_host(host, [call(*words)], timeout_s)
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
    return problems_in(answer, first)


def problems_in(answer: HostAnswer, first: str) -> list[HostProblem]:
    """What the first host found. Raises SubmitRefused if it printed something else."""
    try:
        found = [json_as_type(line, HostProblem) for line in answer.output.splitlines() if line.strip()]
    except msgspec.MsgspecError as error:
        raise SubmitRefused(f"{first} gave an unexpected answer: {error}") from error
    return [HostProblem(_plain(one.host), _plain(one.message), one.hint and _plain(one.hint)) for one in found]


def refused(problems: Sequence[HostProblem]) -> SubmitRefused:
    """Why a run is not started on hosts."""
    return SubmitRefused("; ".join(one.message for one in problems[:5]), problems[0].hint)


def _plain(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)[:_LONGEST]


def problem_of(host: str, run_folder: str, first: str, ssh: Sequence[str] = SSH) -> tuple[HostProblem | None, str]:
    """Why a run cannot use a host, seen from the first one, on which this runs; None if it can. And its machine."""
    lines = [MACHINE]
    if run_folder:  # the program as text: the host may not have the run folder
        lines.append(f'set -- {FOLDER}/{PREFIX}*; [ -e "$1" ] || {{ type python3 >/dev/null; exit; }}')
        lines.append(exec_line(["python3", "-I", "-c", PROGRAM.read_text("utf-8"), os.path.basename(run_folder)]))
    try:
        answer = on_host(host, lines, timeout_s=40, origin=first, ssh=ssh)
    except Unreachable as error:
        return HostProblem(host, str(error), error.hint), ""
    except (OSError, subprocess.TimeoutExpired):
        return HostProblem(host, f"{host} does not answer over ssh"), ""
    output = answer.output.splitlines()
    machine, used = " ".join(output[:5]), output[5:]
    if answer.code != 0:
        return HostProblem(host, f"{host}: {answer.error or f'exit code {answer.code}'}"), machine
    hint = "exclude it (`--set exclude=[HOST]`), or wait for the other run"
    return (HostProblem(host, f"{host}: {used[0]}", hint) if used else None), machine


def seen_from_here(
    hosts: Sequence[str], run_folder: str, ssh: Sequence[str] = SSH
) -> tuple[list[HostProblem], dict[str, str]]:
    """The same of each host, and those that are one machine; and the machines."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        found = list(pool.map(lambda host: problem_of(host, run_folder, hosts[0], ssh), hosts))
    machines = dict(zip(hosts, (machine for _, machine in found), strict=True))
    twice = one_machine(machines)
    problems = [HostProblem(host, f"{FindingCode.INVALID_HOSTFILE} {text}", TWICE_HINT) for host, text in twice.items()]
    return [*filter(None, (problem for problem, _ in found)), *problems], machines


def tell(problems: Sequence[HostProblem]) -> None:
    """Print them for the host that asks."""
    for problem in problems:
        sys.stdout.write(msgspec.json.encode(problem).decode() + "\n")


def main(arguments: list[str]) -> int:
    """Do it."""
    action, *words = arguments
    if action == "check":
        tell(seen_from_here(words[1:], words[0])[0])
        return 0
    if action in {"start", "start-here"}:
        run_folder, job_id, *words = words
        end = words.index(SUPERVISOR)
        problems, machines = seen_from_here(words[:end], run_folder, ssh_of(job_id, make=True))
        here = run_program(["bash", "-c", MACHINE], TIMEOUT_S).stdout.split() if action == "start-here" else None
        if here is not None and machines[words[0]].split() != here:
            return OTHER_MACHINE
        tell(problems)
        return REFUSED if problems else supervise(words[end + 1 :])
    from hpc_launch.schedulers.local.local_scheduler import state_after

    state = state_after(action, words[0], Path(words[1]))
    if state is not None:
        sys.stdout.write(msgspec.json.encode(state).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
