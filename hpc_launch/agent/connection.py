"""One ssh to one host: a held connection whose input keeps a part of the job alive, or a question with an answer.

Uses the user's own ssh with its configuration. Commands go through the standard input to a bash, so that no shell of
another kind has to read them; what a host prints at login, before a random mark, is dropped. Time, output and memory
are bounded.

Self-contained: standard library of Python 3.6 or later.
"""

import os
import random
import selectors
import subprocess
import tempfile
import time
from typing import IO, Iterator, List, NamedTuple, Optional, Sequence, Tuple

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
"""How often each held connection gets a line."""
END_S = 8.5
"""Seconds for the hosts to end their processes: less than the supervisor's 10 s between SIGTERM and SIGKILL."""
MAX_LOGIN = 64 << 20
"""Bytes that a host may print at login."""
MAX_ANSWER = 4 << 20
MAX_MESSAGES = 64 << 10
_CHUNK = 1 << 16


class Connection:
    """One ssh that runs a line of bash on a host.

    Attributes:
        started: Whether the host has got as far as the line.
        quiet: Whether it had printed nothing by then.
        output: The end of what it printed: after the mark once it has started, before that of the login.
        messages: The end of the standard error.
        too_long: Whether it printed more than is allowed.
    """

    def __init__(self, node: int, host: str, line: str, ssh: Sequence[str] = SSH, held: bool = True) -> None:
        self.node, self.host, self.begin = node, host, time.monotonic()
        self.output = self.messages = b""
        self.code: Optional[int] = None
        self.started = self.too_long = False
        self.quiet = True
        self._size = 0
        mark = "hpc-launch-%032x" % random.SystemRandom().getrandbits(128)
        self._mark = ("%s\n" % mark).encode()
        # Two words by `printf` itself: a shell that echoes its input must not look like an answer.
        text = "printf '%%s%%s\\n' %s %s; %s\n" % (mark[:20], mark[20:], line)
        with tempfile.TemporaryFile() as file:
            if not held:
                file.write(text.encode("utf-8", "surrogateescape"))
                file.seek(0)
            # A session of its own: signals to the job's processes must not reach ssh before its host has ended.
            self.process = subprocess.Popen(
                [*ssh, "--", host, "bash -s"],
                stdin=subprocess.PIPE if held else file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        if held:
            self.write(text.encode())
        for stream in filter(None, (self.process.stdin, *self.outputs())):
            os.set_blocking(stream.fileno(), False)

    def outputs(self) -> List[IO[bytes]]:
        """What ssh prints."""
        return [stream for stream in (self.process.stdout, self.process.stderr) if stream is not None]

    def register(self, selector: selectors.BaseSelector, data: object) -> None:
        """Look at what the host prints."""
        for stream in self.outputs():
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

    def ended(self) -> bool:
        self.code = self.process.poll()
        return self.code is not None

    def take(self, stream: object, data: bytes) -> None:
        """Keep what came on one of the streams."""
        if stream is self.process.stderr:
            self.messages = (self.messages + data)[-MAX_MESSAGES:]
            return
        self._size += len(data)
        self.output += data
        if not self.started:
            before, mark, rest = self.output.partition(self._mark)
            self.quiet = self.quiet and not before
            if mark:
                self.started, self.output, self._size = True, rest, len(rest)
            else:
                self.output = self.output[-_CHUNK:]
        self.too_long = self._size > (MAX_ANSWER if self.started else MAX_LOGIN)
        self.output = self.output[-MAX_ANSWER:]

    def drain(self) -> None:
        """Take what is left after its end. A master connection in the background may hold the streams open."""
        for stream in self.outputs():
            for _ in range(MAX_ANSWER // _CHUNK):
                try:
                    data = os.read(stream.fileno(), _CHUNK)
                except OSError:
                    break
                if not data:
                    break
                self.take(stream, data)

    def reason(self) -> str:
        """The last line that ssh or the host wrote, without control characters."""
        line = last_line(self.messages)
        return ": " + line if line else ""


class Answer(NamedTuple):
    """What a host answered.

    `started`: whether it ran the lines; if not, `output` is the end of what the login printed. `quiet`: whether the
    login printed nothing.
    """

    code: int
    started: bool
    output: bytes
    messages: bytes
    too_long: bool
    quiet: bool


def ask(host: str, lines: Sequence[str], timeout_s: float, ssh: Sequence[str] = SSH) -> Answer:
    """Run lines of bash on a host. Raises OSError and subprocess.TimeoutExpired."""
    one = Connection(0, host, "\n".join(lines), ssh, held=False)
    end = one.begin + timeout_s
    try:
        with selectors.DefaultSelector() as selector:
            one.register(selector, one)
            while not one.ended() and not one.too_long:
                if time.monotonic() > end:
                    raise subprocess.TimeoutExpired([*ssh, host], timeout_s)
                for key, data in arrived(selector, 0.2):
                    one.take(key.fileobj, data)
        one.drain()
    finally:
        one.process.kill()
        code = one.process.wait()
        for stream in one.outputs():
            stream.close()
    return Answer(code, one.started, one.output, one.messages, one.too_long, one.quiet)


def arrived(selector: selectors.BaseSelector, seconds: float) -> Iterator[Tuple[selectors.SelectorKey, bytes]]:
    """What arrives in this time, by its stream; b'' at the end of one, which is not looked at any more."""
    for key, _ in selector.select(seconds):
        try:
            data = os.read(key.fd, _CHUNK)
        except OSError:
            data = b""
        if not data:
            selector.unregister(key.fileobj)
        yield key, data


def last_line(text: bytes) -> str:
    """The last line that is not empty, without control characters."""
    lines = [line for line in map(shown, text.splitlines()) if line]
    return lines[-1][:300] if lines else ""


def shown(text: bytes) -> str:
    """Text of a host, without control characters."""
    return "".join(one if one.isprintable() else "?" for one in text.decode("utf-8", "replace").strip())
