"""One ssh to one host, or one shell on this host, whose input keeps a part of the job alive.

Uses the user's own ssh with its configuration. Commands go through the standard input to a bash, so that no shell of
another kind has to read them; what a host prints at login, before a random mark, is dropped.

Self-contained: standard library of Python 3.6 or later.
"""

import os
import random
import selectors
import subprocess
import time
from typing import Iterator, List, Optional, Sequence, Tuple

OPTIONS = [
    "-oBatchMode=yes",
    "-oLogLevel=ERROR",
    "-oClearAllForwardings=yes",
    "-oForwardAgent=no",
    "-oForwardX11=no",
    "-oPermitLocalCommand=no",
]
"""For each ssh of hpc-launch."""
SSH = [
    *("ssh", "-T", *OPTIONS, "-oConnectTimeout=20", "-oServerAliveInterval=2", "-oServerAliveCountMax=3"),
    "-oControlPath=none",  # a shared connection ends with its last session, and is watched by the options of its first
]
SSH_FAILED = 255
"""The exit code of ssh itself (ssh(1))."""
BEAT_S = 1.0
"""How often each connection gets a line."""
END_S = 8.5
"""Seconds for the hosts to end their processes: less than the supervisor's 10 s between SIGTERM and SIGKILL."""
KEPT_BYTES = 4096
"""Of the messages of each ssh, for a connection that fails, and of a line that a host reports."""
LAST_BYTES = 1 << 20
"""At most so much is read of an ssh that has ended."""


class Connection:
    """The first of these nodes, and the way to the others."""

    def __init__(
        self, nodes: List[Tuple[int, str]], command: str, here: bool = False, options: Sequence[str] = ()
    ) -> None:
        (self.node, self.host), self.relays, self.here = nodes[0], len(nodes) > 1, here
        self.below = {str(node) for node, _ in nodes}
        """The nodes that the host may report on."""
        self.begin = time.monotonic()
        self.messages = b""
        self.code: Optional[int] = None
        self.started = False
        """Whether the host has got as far as the command."""
        self.over = False
        """Whether the host has reported that its command ended by itself, or that all hosts which it starts have."""
        self._output = b""
        self._mark = ("hpc-launch-%032x" % random.SystemRandom().getrandbits(128)).encode()
        # A session of its own: signals to the job's processes must not reach ssh before its host has ended.
        self.process = subprocess.Popen(
            ["bash", "-s"] if here else [SSH[0], *options, *SSH[1:], "--", self.host, "bash -s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        # Two words by `printf` itself: a shell that echoes its input must not look like an answer.
        mark = self._mark.decode()
        self.write(("printf '%%s%%s\\n' %s %s; %s\n" % (mark[:20], mark[20:], command)).encode())
        for stream in filter(None, (self.process.stdin, self.process.stdout, self.process.stderr)):
            os.set_blocking(stream.fileno(), False)

    def register(self, selector: selectors.BaseSelector, data: object) -> None:
        """Look at what the host prints."""
        for stream in filter(None, (self.process.stdout, self.process.stderr)):
            selector.register(stream, selectors.EVENT_READ, data)

    def write(self, text: bytes) -> None:
        """Send text, unless ssh has ended or takes nothing now."""
        try:
            if self.process.stdin is not None and not self.process.stdin.closed:
                os.write(self.process.stdin.fileno(), text)
        except OSError:
            pass

    def close(self) -> None:
        """End the input: the host ends its part of the job."""
        try:
            if self.process.stdin is not None:
                self.process.stdin.close()
        except OSError:
            pass

    def give_up(self) -> None:
        """Wait for it no longer. On this host it is the agent itself, which still has to end its processes."""
        if not self.here:
            self.process.kill()

    def ended(self) -> bool:
        self.code = self.process.poll()
        return self.code is not None

    def messages_came(self, data: bytes) -> None:
        """Keep the end of what ssh and the shells complain about."""
        self.messages = (self.messages + data)[-KEPT_BYTES:]

    def lines_of(self, data: bytes) -> List[str]:
        """The lines in what came on the standard output of a host that starts others; of any other host only `over`."""
        self._output += data
        if not self.started:
            _, mark, rest = self._output.partition(self._mark + b"\n")
            self.started = bool(mark)
            self._output = rest if mark else self._output[-len(self._mark) :]
        if not self.started:
            return []
        lines = self._output.split(b"\n")
        self._output = lines.pop()[-KEPT_BYTES:]
        return [shown(line[:KEPT_BYTES]) for line in lines if self.relays or line == b"over"]

    def last_lines(self) -> List[str]:
        """The same of what is left after its end. A master connection in the background may hold the streams open."""
        lines: List[str] = []
        for stream in (self.process.stdout, self.process.stderr):
            for _ in range(LAST_BYTES >> 16):
                try:
                    data = os.read(stream.fileno(), 1 << 16) if stream is not None else b""
                except OSError:
                    break
                if not data:
                    break
                if stream is self.process.stderr:
                    self.messages_came(data)
                else:
                    lines += self.lines_of(data)
        return lines

    def reason(self) -> str:
        """The last line that ssh or the host wrote, without control characters."""
        lines = [line for line in map(shown, self.messages.splitlines()) if line]
        return ": " + lines[-1][:300] if lines else ""


def arrived(selector: selectors.BaseSelector, seconds: float) -> Iterator[Tuple[selectors.SelectorKey, bytes]]:
    """What arrives in this time, by its stream; b'' at the end of one, which is not looked at any more."""
    for key, _ in selector.select(seconds):
        try:
            data = os.read(key.fd, 1 << 16)
        except OSError:
            data = b""
        if not data:
            selector.unregister(key.fileobj)
        yield key, data


def shown(text: bytes) -> str:
    """Text of a host, without control characters."""
    return "".join(one if one.isprintable() else "?" for one in text.decode("utf-8", "replace").strip())
