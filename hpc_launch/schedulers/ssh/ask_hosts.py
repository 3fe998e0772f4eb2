"""Run a Python program of the agent on many hosts at the same time, without copying it there."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from hpc_launch.base.errors import Unreachable
from hpc_launch.schedulers.ssh.ssh_command import exec_line, on_host

MAX_HOSTS_AT_ONCE = 64


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
