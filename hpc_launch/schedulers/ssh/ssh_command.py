"""Run one bash command on a host, or a program on many, by the user's own ssh with its configuration.

The host need not be trusted: what it prints at login is dropped, and its answer is bounded.

Why ssh does not reach a host: the missing step, by what OpenSSH says.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from hpc_launch.agent.fan_out import OPTIONS, SSH_FAILED, ask, last_line
from hpc_launch.base.errors import Unreachable
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.shell_text import quote

_LOGIN, _KEY, _REACH = FindingCode.SSH_LOGIN_REFUSED, FindingCode.SSH_HOST_KEY, FindingCode.HOST_NOT_REACHABLE
_ADD_KEY = (
    "`ssh-copy-id {host}`, after `ssh-keygen -t ed25519` if you have no key; `ssh-add` if it has a passphrase, "
    "which works from here alone; `chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys` there"
)
_FAULTS = (
    (r"bad owner or permissions on (\S{1,300})", _LOGIN, "others can change {0}", "`chmod go-w {0}`"),
    (
        r"identification has changed",
        _KEY,
        "its host key is not the known one",
        "if the host was reinstalled, `ssh-keygen -R {host}`, then `ssh {host}` and compare the new key",
    ),
    (
        r"host key verification failed|host key is known|no matching host key|no hostkey alg",
        _KEY,
        "its host key is unknown here",
        "run `ssh {host}` once, compare its key and accept it",
    ),
    (r"permissions \d+ for '([^'\n]{1,300})' are too open", _LOGIN, "others can read the key {0}", "`chmod 600 {0}`"),
    (
        r"permission denied|too many authentication failures|no more authentication methods",
        _LOGIN,
        "it accepts none of your keys",
        _ADD_KEY,
    ),
    (r"could not resolve", _REACH, "", "correct the name, or add it to ~/.ssh/config with its HostName"),
    (r"connection refused", _REACH, "", "start sshd there, or correct its port in ~/.ssh/config"),
    (r"timed out|no route", _REACH, "", "start the host, or open the port of its sshd in the firewalls between"),
)
"""What ssh says, the first that matches: the code, the reason where ssh's words are not enough, and the next step."""


class SshFault(Struct, frozen=True):
    """What is missing, and the step that adds it. `reason` is empty where what ssh says is enough."""

    code: FindingCode
    reason: str
    hint: str


def fault_of(host: str, messages: bytes) -> SshFault:
    """The fault of a connection that could not be made from here."""
    text = messages.decode("utf-8", "replace")
    for pattern, code, reason, hint in _FAULTS:
        if found := re.search(pattern, text, re.IGNORECASE):
            return SshFault(code, reason.format(*found.groups()), hint.format(*found.groups(), host=host))
    return SshFault(_REACH, "", f"`ssh -o BatchMode=yes {host} true` must work without a password")


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
