"""Starts the script of a node on each host by ssh, and holds the connections until all have ended.

    hpc_launch_fan_out.py ATTEMPT_FOLDER HOST...

Uses the user's own ssh with its configuration. Commands go through the standard input to a bash, so that no shell of
another kind has to read them; what a host prints at login is read and dropped. Every second each connection gets a
line: without it, a host ends its part of the job (hpc_launch_on_host.py). When a connection is lost, or on SIGTERM, the
others are ended. The exit code is that of the host that failed first.

Self-contained: standard library of Python 3.6 or later.
"""

import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from typing import Dict, List, Optional

SSH = [
    "ssh",
    "-T",
    "-oBatchMode=yes",
    "-oConnectTimeout=20",
    "-oServerAliveInterval=3",
    "-oServerAliveCountMax=3",
    "-oLogLevel=ERROR",
    "-oClearAllForwardings=yes",
    "-oForwardAgent=no",
    "-oForwardX11=no",
    "-oPermitLocalCommand=no",
]
SSH_FAILED = 255
BEAT_S = 1.0
END_S = 8.5
"""Seconds for the hosts to end their processes: less than the supervisor's 10 s between SIGTERM and SIGKILL."""
LEFT_S = 10.0
"""Seconds to end what a host whose connection was lost may have left."""
KEPT_BYTES = 4096
"""Of the messages of each ssh, for a connection that fails."""


class Connection:
    """One ssh, to one host."""

    def __init__(self, host: str, node: int, lines: str) -> None:
        self.host, self.node = host, node
        self.messages = b""
        self.code: Optional[int] = None
        # A session of its own: signals to the job's processes must not reach ssh before its host has ended.
        self.process = subprocess.Popen(
            [*SSH, "--", host, "bash -s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.write(lines.encode())
        if self.process.stdin is not None:
            os.set_blocking(self.process.stdin.fileno(), False)

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


class FanOut:
    """All connections of an attempt."""

    def __init__(self, folder: str, hosts: List[str]) -> None:
        self.folder, self.hosts = folder, hosts
        self.end_at: Optional[float] = None
        self.code = 0
        self.lost: List[Connection] = []
        self.selector = selectors.DefaultSelector()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        script = shlex.quote(os.path.join(folder, "node.sh"))
        self.running: Dict[int, Connection] = {}
        for node, host in enumerate(hosts):
            missing = shlex.quote("the run folder is not shared with this host: %s" % folder)
            line = "[ -r %s ] || { echo %s >&2; exit 1; }; exec bash %s begin %d\n" % (script, missing, script, node)
            connection = Connection(host, node, line)
            self.running[node] = connection
            for stream in filter(None, (connection.process.stdout, connection.process.stderr)):
                self.selector.register(stream, selectors.EVENT_READ, connection)
            if self.ending():
                self.end()
                break

    def on_signal(self, number: int, _: object) -> None:
        self.code = self.code or 128 + number
        self.end()

    def ending(self) -> bool:
        return self.end_at is not None

    def end(self) -> None:
        """Let all hosts end their part of the job."""
        if self.end_at is None:
            self.end_at = time.monotonic() + END_S
        for connection in list(self.running.values()):
            connection.close()

    def run(self) -> int:
        """Until all have ended. Returns the exit code."""
        beat = 0.0
        while self.running:
            self.read(0.3)
            now = time.monotonic()
            if now - beat >= BEAT_S:
                beat = now
                for connection in self.running.values():
                    connection.write(b"\n")
            for node in [node for node, connection in self.running.items() if connection.ended()]:
                self.on_end(self.running.pop(node))
            if self.end_at is not None and now > self.end_at:
                for connection in self.running.values():
                    connection.process.kill()
        self.end_what_is_left()
        return self.code

    def read(self, seconds: float) -> None:
        """Read what the hosts print, and keep the end of what ssh and the shells complain about."""
        for key, _ in self.selector.select(seconds):
            connection = key.data
            data = os.read(key.fd, 1 << 16)
            if not data:
                self.selector.unregister(key.fileobj)
            elif key.fileobj is connection.process.stderr:
                connection.messages = (connection.messages + data)[-KEPT_BYTES:]

    def on_end(self, connection: Connection) -> None:
        """Note the end of a host: a lost connection ends the job."""
        code = connection.code or 0
        code = 128 - code if code < 0 else code
        if self.end_at is not None or code == 0 or self.noted(connection, code):
            self.code = self.code or code
            return
        self.read(0.3)  # its last message
        self.code = self.code or code
        self.lost.append(connection)
        what = "the connection" if code == SSH_FAILED else "its part of the job"
        say("%s: %s ended with code %d%s" % (connection.host, what, code, reason(connection.messages)))
        note(os.path.join(self.folder, "logs", "node-%d.exit" % connection.node), code)
        self.end()

    def noted(self, connection: Connection, code: int) -> bool:
        """Whether the host itself noted how its part ended. ssh's own code is noted only where the command ended so."""
        logs = os.path.join(self.folder, "logs")
        codes = set()
        for name in os.listdir(logs):
            if name.startswith("node-%d." % connection.node) and name.endswith(".exit"):
                with open(os.path.join(logs, name), errors="replace") as file:
                    codes.add(file.read(9).strip())
        return str(code) in codes if code == SSH_FAILED else bool(codes - {"0"})

    def end_what_is_left(self) -> None:
        """End the processes of hosts whose connection was lost: its end may have been that of the agent there."""
        agent = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hpc_launch_on_host.py")
        processes = []
        for connection in self.lost:
            words = ["python3", "-I", agent, "--end", self.folder, str(connection.node)]
            process = subprocess.Popen(
                ["ssh", "-oConnectTimeout=5", *SSH[1:], "--", connection.host, "bash -s"],  # ssh takes the first
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            processes.append((process, "exec %s\n" % " ".join(map(shlex.quote, words))))
        end_at = time.monotonic() + LEFT_S
        for process, line in processes:
            try:
                process.communicate(line.encode(), timeout=max(end_at - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()


def reason(messages: bytes) -> str:
    """The last line that ssh or the host wrote, without control characters."""
    lines = [line.strip() for line in messages.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines:
        return ""
    return ": " + "".join(character if character.isprintable() else "?" for character in lines[-1][:300])


def note(path: str, code: int) -> None:
    """Write an exit code unless there is one."""
    try:
        with open(path, "x") as file:
            file.write("%d\n" % code)
    except OSError:
        pass


def say(text: str) -> None:
    """Write a line to the log of the job."""
    print("[hpc-launch %s] %s" % (time.strftime("%Y-%m-%d %H:%M:%S"), text), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(FanOut(sys.argv[1], sys.argv[2:]).run())
