"""Starts the script of a node on each host by ssh, and holds the connections until all have ended.

    fan_out.py ATTEMPT_FOLDER [--spares] HOST...

At most AT_ONCE hosts are logging in at the same time. Every second each connection gets a line: without it, a host ends
its part of the job (on_host.py). When a connection is lost, or on SIGTERM, the others are ended. The exit
code is that of the host that failed first. With --spares, the others stay: the job does without the host.

Self-contained: standard library of Python 3.6 or later.
"""

import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from typing import List, Optional, Sequence

from hpc_launch.agent import program
from hpc_launch.agent.connection import BEAT_S, END_S, SSH, SSH_FAILED, Connection, arrived

AT_ONCE = 32
START_S = 120.0
"""Seconds for a host to get from the login to the command."""
LEFT_S = 10.0
"""Seconds to end what a host whose connection was lost may have left."""
OVER = b"\nover\n"
"""Printed last by a host whose command ended by itself and noted its exit code."""


class FanOut:
    """All connections of an attempt."""

    ssh: Sequence[str] = tuple(SSH)

    def __init__(self, folder: str, hosts: List[str], spares: bool = False) -> None:
        self.folder, self.spares = folder, spares
        self.waiting = list(enumerate(hosts))
        self.running: List[Connection] = []
        self.cleaning: List["subprocess.Popen[bytes]"] = []
        self.end_at: Optional[float] = None
        self.code = 0
        self.stopped = False
        self.selector = selectors.DefaultSelector()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)

    def on_signal(self, number: int, _: object) -> None:
        self.code = self.code or 128 + number
        self.stopped = True

    def end(self) -> None:
        """Let all hosts end their part of the job."""
        if self.end_at is None:
            self.end_at = time.monotonic() + END_S
        self.waiting = []
        for connection in self.running:
            connection.close()

    def run(self) -> int:
        """Until all have ended. Returns the exit code."""
        beat = 0.0
        while self.running or self.waiting:
            if self.stopped and self.end_at is None:
                self.end()
            self.start()
            for key, data in arrived(self.selector, 0.3):
                key.data.take(key.fileobj, data)
                self.on_output(key.data)
            now = time.monotonic()
            if now - beat >= BEAT_S:
                beat = now
                for connection in self.running:
                    connection.write(b"\n")
            for connection in self.running:
                late = not connection.started and now - connection.begin > START_S
                if late or (self.end_at is not None and now > self.end_at):
                    connection.process.kill()
            for connection in [one for one in self.running if one.ended()]:
                self.running.remove(connection)
                self.on_end(connection)
        end_at = time.monotonic() + LEFT_S
        for process in self.cleaning:
            try:
                process.wait(timeout=max(end_at - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
        return self.code

    def start(self) -> None:
        """Start the next hosts, as soon as others have logged in."""
        while self.waiting and sum(not one.started for one in self.running) < AT_ONCE:
            node, host = self.waiting.pop(0)
            connection = Connection(node, host, self.line(node), self.ssh)
            self.running.append(connection)
            connection.register(self.selector, connection)

    def line(self, node: int) -> str:
        """What a host runs."""
        script = os.path.join(self.folder, "node.sh")
        hint = "; set `shared_folders: false` below `scheduler:` in the site profile"
        return where_shared(script, ["bash", script, "begin", str(node)], hint)

    def on_output(self, connection: Connection) -> None:
        """Use what a host has printed."""

    def drain(self, connection: Connection) -> None:
        """Take the rest of what a connection printed."""
        for stream in connection.outputs():
            if stream in self.selector.get_map():
                self.selector.unregister(stream)
        connection.drain()
        self.on_output(connection)

    def on_end(self, connection: Connection) -> None:
        """Note the end of a connection: one that was lost ends the job."""
        self.drain(connection)
        code = connection.code or 0
        code = 128 - code if code < 0 else code
        by_itself = connection.started and (code == 0 or connection.output.endswith(OVER))
        if self.end_at is not None or by_itself:
            self.code = self.code or code
            return
        self.end_what_is_left(connection)
        code = code or 1
        what = "the connection" if code == SSH_FAILED else "its part of the job"
        why = connection.reason() or ("" if connection.started else ": its login shell ended before the job began")
        if not connection.started and time.monotonic() - connection.begin > START_S:
            why = ": it did not begin within %d s" % START_S
        text = "%s: %s ended with code %d%s" % (connection.host, what, code, why)
        if self.spares:
            say("the job goes on without the spare " + text)
            return
        self.code = code
        say(text)
        note(os.path.join(self.folder, "logs", "node-%d.exit" % connection.node), code)
        self.end()

    def end_what_is_left(self, connection: Connection) -> None:
        """End the processes of a host whose connection was lost: its end may have been that of the agent there."""
        words = ["python3", *program("job_processes"), "end", self.folder, str(connection.node)]
        ssh = ["ssh", "-oConnectTimeout=3", *SSH[1:]]  # ssh takes the first of an option
        process = subprocess.Popen(
            [*ssh, "--", connection.host, "bash -s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if process.stdin is not None:
                process.stdin.write(("exec %s\n" % " ".join(map(shlex.quote, words))).encode())
                process.stdin.close()
        except BrokenPipeError:  # ssh has ended
            pass
        self.cleaning.append(process)


def where_shared(script: str, words: List[str], hint: str = "") -> str:
    """A line of bash that becomes a command, if the host has a script in the run folder."""
    missing = "the run folder is not shared with this host: %s%s" % (os.path.dirname(script), hint)
    test = "[ -r %s ] || { echo %s >&2; exit 1; }; " % (shlex.quote(script), shlex.quote(missing))
    return test + "exec " + " ".join(map(shlex.quote, words))


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


def main(words: List[str]) -> int:
    """Run it."""
    spares = words[1] == "--spares"
    return FanOut(words[0], words[2 if spares else 1 :], spares).run()
