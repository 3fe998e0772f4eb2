"""Run one bash command on a host, or a program on many, by the user's own ssh with its configuration.

The host need not be trusted: what it prints at login is dropped, and its answer is bounded.

Why ssh does not reach a host: the missing step, by what OpenSSH says and by the files of the user here.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from hpc_launch.agent.fan_out import OPTIONS, SSH_FAILED, ask, last_line
from hpc_launch.base.errors import Unreachable
from hpc_launch.base.finding_codes import FindingCode
from hpc_launch.job.shell_text import quote

_LIMIT_S = 5.0
_NO_AGENT = 2
"""The exit code of `ssh-add -l` without an agent (ssh-add(1))."""
_OPEN_FILE = re.compile(r"permissions \d+ for '([^'\n]{1,300})' are too open", re.IGNORECASE)
_BAD_CONFIG = re.compile(r"bad owner or permissions on (\S{1,300})", re.IGNORECASE)
_LOGIN = ("permission denied", "too many authentication failures", "no more authentication methods")
_KEY = ("host key verification failed", "host key is known", "no matching host key", "no hostkey alg")
_SEE = "`ssh -o BatchMode=yes {host} true` must work without a password"


class SshFault(Struct, frozen=True):
    """What is missing, and the step that adds it. `reason` is empty where what ssh says is enough."""

    code: FindingCode
    reason: str
    hint: str


def fault_of(host: str, messages: bytes) -> SshFault:
    """The fault of a connection that could not be made from here."""
    text = messages.decode("utf-8", "replace")
    lower = text.lower()
    login, key, reach = FindingCode.SSH_LOGIN_REFUSED, FindingCode.SSH_HOST_KEY, FindingCode.HOST_NOT_REACHABLE
    if found := _BAD_CONFIG.search(text):
        return SshFault(login, f"others can change {found[1]}", f"`chmod go-w {found[1]}`")
    if "identification has changed" in lower:
        hint = f"if the host was reinstalled, `ssh-keygen -R {host}`, then `ssh {host}` and compare the new key"
        return SshFault(key, "its host key is not the known one", hint)
    if any(words in lower for words in _KEY):
        hint = f"run `ssh {host}` once, compare its key and accept it"
        return SshFault(key, "its host key is unknown here", hint)
    if found := _OPEN_FILE.search(text):
        return SshFault(login, f"others can read the key {found[1]}", f"`chmod 600 {found[1]}`")
    if any(words in lower for words in _LOGIN):
        return _refused_login(host)
    if "could not resolve" in lower:
        return SshFault(reach, "", "correct the name, or add it to ~/.ssh/config with its HostName")
    if "connection refused" in lower:
        return SshFault(reach, "", "start sshd there, or correct its port in ~/.ssh/config")
    if "timed out" in lower or "no route" in lower:
        return SshFault(reach, "", "start the host, or open the port of its sshd in the firewalls between")
    return SshFault(reach, "", _SEE.format(host=host))


def _refused_login(host: str) -> SshFault:
    """What keeps the user from logging in: no key, a locked key, or a host that does not accept it."""
    code = FindingCode.SSH_LOGIN_REFUSED
    named = _identity_files(host)
    keys = [path for path in named if os.path.isfile(path)]
    agent = _agent_has_keys()
    if not keys and not agent:
        reason = "there is no key: none in ~/.ssh, and " + ("no agent runs" if agent is None else "none in the agent")
        return SshFault(code, reason, f"`ssh-keygen -t ed25519`, then `ssh-copy-id {host}`")
    locked = [path for path in keys if _has_passphrase(path)]
    if keys and locked == keys and not agent:
        why = "no agent runs" if agent is None else "the agent does not hold it"
        reason = f"the key {_short(keys[0])} has a passphrase, and {why}"
        hint = f"`ssh-add {_short(keys[0])}`"
        if "SSH_CONNECTION" in os.environ:  # on the first host, where no agent comes along
            hint = "between the hosts, use a key without a passphrase: name it as IdentityFile in ~/.ssh/config"
        return SshFault(code, reason, hint)
    if opened := _writable_by_others():
        reason = f"it accepts none of your keys; others can write {_short(opened)}, which sshd refuses"
        return SshFault(code, reason, f"`chmod go-w {_short(opened)}`, there if the home folder is not shared")
    if (known := _authorized_here(keys)) is False:
        return SshFault(code, "it accepts none of your keys", f"`ssh-copy-id {host}`")
    hint = f"`ssh-copy-id {host}`; then `chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys` there"
    if known:
        hint = "see the log of sshd there; `chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys` there"
    return SshFault(code, "it accepts none of your keys", hint)


def _identity_files(host: str) -> list[Path]:
    """The keys that ssh would try, by its configuration."""
    _, output = _answer(["ssh", "-G", "--", host])
    words = (line.partition(" ") for line in output.splitlines())
    return [Path(os.path.expanduser(rest.strip())) for key, _, rest in words if key == "identityfile"]


def _agent_has_keys() -> bool | None:
    """None without an agent."""
    code, _ = _answer(["ssh-add", "-l"])
    return None if code in (None, _NO_AGENT) else code == 0


def _has_passphrase(path: Path) -> bool:
    """ssh-keygen(1) prints the public key of one without a passphrase."""
    code, output = _answer(["ssh-keygen", "-y", "-P", "", "-f", str(path)])
    return code != 0 and "passphrase" in output


def _writable_by_others() -> Path | None:
    """A file or folder whose mode sshd refuses (`StrictModes`, sshd_config(5)), where the home folder is shared."""
    home = Path.home()
    for path in (home, home / ".ssh", home / ".ssh" / "authorized_keys"):
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o022:
                return path
        except OSError:
            continue
    return None


def _authorized_here(keys: Sequence[Path]) -> bool | None:
    """Whether a key may log in where the home folder is the one here; None if unknown."""
    try:
        authorized = (Path.home() / ".ssh" / "authorized_keys").read_text(errors="replace")
    except FileNotFoundError:
        return False
    except OSError:
        return None
    public = []
    for path in keys:
        try:
            public.append(path.with_name(f"{path.name}.pub").read_text(errors="replace").split()[1])
        except (OSError, IndexError):
            return None
    return any(key in authorized for key in public) if public else None


def _answer(words: Sequence[str]) -> tuple[int | None, str]:
    """Exit code and output of a tool of OpenSSH; None if it gives no answer."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _short(path: Path) -> str:
    """`~/.ssh/id_ed25519`."""
    home = Path.home()
    return f"~/{path.relative_to(home)}".rstrip("/.") if path.is_relative_to(home) else str(path)


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
