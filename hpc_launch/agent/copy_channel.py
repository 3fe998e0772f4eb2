"""One connection to a host that shares no folders: starts the host's end of the copy there, and exchanges frames.

Self-contained: standard library of Python 3.6 or later.
"""

import json
import os
import pkgutil
import secrets
import select
import shlex
import subprocess
from typing import Any, List, Tuple

from hpc_launch.agent.connection import SSH, shown
from hpc_launch.agent.copy_protocol import Fields, Frames, RefusedError

ANSWER_S = 60.0
"""Without a byte from a host while something is expected of it."""
MOST_LOGIN = 64 << 20
"""Bytes that a host may print at login."""
HOST_MODULES = (
    "hpc_launch.agent.copy_protocol",
    "hpc_launch.agent.copy_receive",
    "hpc_launch.agent.copy_send",
    "hpc_launch.agent.copy_host",
)
"""What runs on the host: each imports those before it."""
_STARTER = """\
import json, os, sys, types  # copy_host.py, for ps(1)
left, text = %d, b''
while left:
 part = os.read(0, left)
 part or sys.exit(1)
 left -= len(part)
 text += part
for name, source in json.loads(text.decode()):
 module = sys.modules[name] = types.ModuleType(name)
 exec(compile(source, name + '.py', 'exec'), module.__dict__)
module.main()
"""


class LostError(Exception):
    """The connection to a host has ended, or it sent something unexpected."""


def host_program() -> bytes:
    """The names and sources of HOST_MODULES. Raises OSError."""
    modules = []
    for name in HOST_MODULES:
        package, _, base = name.rpartition(".")
        modules.append((name, (pkgutil.get_data(package, base + ".py") or b"").decode()))
    return json.dumps(modules).encode()


class Channel:
    """The connection. Its methods raise LostError when it has ended, and ValueError for what is no frame."""

    def __init__(self, host: str) -> None:
        self.frames = Frames()
        self.waiting: List[Tuple[Fields, bytes]] = []
        self.ssh: Any = subprocess.Popen(
            [*SSH, "--", host, "bash -s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def open(self) -> None:
        """Start the host's end."""
        mark, program = secrets.token_hex(16), host_program()
        # Bash reads no further than this line, which reads the program and no further.
        starter = shlex.quote(_STARTER % len(program))
        line = "exec python3 -I -c %s %s %s\n" % (starter, mark[:16], mark[16:])
        self.write(line.encode() + program)
        self.skip_login((mark + "\n").encode())

    def skip_login(self, mark: bytes) -> None:
        """Drop what the host prints at login."""
        rest, dropped = b"", 0
        while mark not in rest:
            dropped += len(rest)
            data = self.read(ANSWER_S)
            rest = rest[-len(mark) :] + data
            if dropped > MOST_LOGIN:
                raise LostError("it prints too much at login")
        self.feed(rest.partition(mark)[2])

    def write(self, data: bytes) -> None:
        """Send data. Raises LostError."""
        try:
            self.ssh.stdin.write(data)
            self.ssh.stdin.flush()
        except OSError:
            raise LostError("the connection ended") from None

    def read(self, seconds: float) -> bytes:
        """What has arrived; b'' if nothing did in time. Raises LostError at the end."""
        if not select.select([self.ssh.stdout], [], [], seconds)[0]:
            if seconds >= ANSWER_S:
                raise LostError("no answer")
            return b""
        data = os.read(self.ssh.stdout.fileno(), 1 << 18)
        if not data:
            raise LostError("the connection ended")
        return data

    def feed(self, data: bytes) -> None:
        """Take frames. Raises RefusedError."""
        for fields, body in self.frames.feed(data):
            if fields.get("is") == "refused":
                raise RefusedError(str(fields.get("why")))
            self.waiting.append((fields, body))

    def next(self, seconds: float) -> Tuple[Fields, bytes]:
        """The next frame."""
        while not self.waiting:
            self.feed(self.read(seconds))
        return self.waiting.pop(0)

    def last_words(self) -> str:
        """What ssh or the host complained about last, when it ends now."""
        close(self.ssh.stdin)
        try:
            self.ssh.wait(5)
        except subprocess.TimeoutExpired:
            self.ssh.kill()
        os.set_blocking(self.ssh.stderr.fileno(), False)
        said = [line for line in (self.ssh.stderr.read() or b"")[-4096:].splitlines() if line.strip()]
        return ": %s" % shown(said[-1]) if said else ""

    def close(self) -> None:
        """End the connection."""
        for stream in (self.ssh.stdin, self.ssh.stdout, self.ssh.stderr):
            close(stream)
        self.ssh.kill()
        self.ssh.wait()


def close(stream: Any) -> None:
    """Close a pipe, of which the other end may be gone."""
    try:
        stream.close()
    except OSError:
        pass
