"""Run one bash command on a host, or a program on many, by the user's own ssh with its configuration.

The host need not be trusted: what it prints at login is dropped, and its answer is bounded.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from hpc_launch.agent.connection import OPTIONS, SSH_FAILED, ask, last_line
from hpc_launch.base.errors import Unreachable
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.shell_text import quote
from hpc_launch.schedulers.ssh.ssh_faults import fault_of

SSH = ("ssh", "-T", *OPTIONS, "-oConnectTimeout=15", "-oServerAliveInterval=5", "-oServerAliveCountMax=3")
TIMEOUT_S = 60.0
MAX_HOSTS_AT_ONCE = 64


class HostAnswer(Struct, frozen=True):
    """What a command answered."""

    code: int
    output: str
    error: str
    """The last line of the messages, printable."""


def on_host(host: str, lines: Sequence[str], timeout_s: float = TIMEOUT_S, *, origin: str = "") -> HostAnswer:
    """Run lines of bash on a host. Raises TimeoutExpired, and Unreachable if it did not start them.

    `origin`: the name of the host on which this runs, for messages that another one shows.
    """
    answer = ask(host, lines, timeout_s, SSH)
    error = "it prints too much" if answer.too_long else last_line(answer.messages)
    if answer.started:
        return HostAnswer(answer.code, answer.output.decode("utf-8", "replace"), error)
    if answer.code != SSH_FAILED and not answer.too_long:
        said = error or last_line(answer.output) or "its shell ended"
        hint = "let no start-up file of the shell there exit, or start a program, in a session without a terminal"
        raise Unreachable(f"{FindingCode.HOST_NOT_REACHABLE} {host} runs no command over ssh: {said}", hint)
    fault = fault_of(host, answer.messages)
    said = f"{fault.reason} ({error})" if fault.reason else error or "no answer"
    way = f"cannot reach {host} over ssh{f' from {origin}' if origin else ''}"
    raise Unreachable(f"{fault.code} {way}: {said}", fault.hint)


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
