"""Starts the script of a node on each host by ssh, and holds the connections until all have ended.

    fan_out.py [--width N] ATTEMPT_FOLDER HOST...
    fan_out.py [--width N] --below ATTEMPT_FOLDER NODE HOST [NODE HOST]...
    fan_out.py ATTEMPT_FOLDER --spares HOST...

Every second each connection gets a line: without it, a host ends its part of the job (on_host.py). When a
connection is lost, or on SIGTERM, the others are ended. The exit code is that of the host that failed first. With
--spares, the others stay: the job does without the host.

Beyond WIDTH hosts it is a tree: a host starts its own node and up to WIDTH others (`--below`). It ends them when its
own connection ends or falls silent, and reports upwards by lines: `lost NODE CODE TEXT`, and `over` as the last one.

Self-contained: standard library of Python 3.6 or later.
"""

import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from typing import Dict, List, Optional, Tuple

from hpc_launch.agent import program
from hpc_launch.agent.connection import BEAT_S, END_S, SSH, SSH_FAILED, Connection, arrived

WIDTH = 32
"""Connections of one host."""
START_S = 120.0
"""Seconds for a host to get from the login to the command."""
SILENT_S = 10.0
"""Without a line from above. The hosts below then need what is left of 15 s (on_host.py)."""
LEFT_S = 10.0
"""Seconds to end what a host whose connection was lost may have left."""
Nodes = List[Tuple[int, str]]


class FanOut:
    """All connections of an attempt, or of a part of it: `below` means that another host holds the first one."""

    def __init__(
        self, folder: str, nodes: Nodes, width: int = WIDTH, below: bool = False, spares: bool = False
    ) -> None:
        self.folder, self.width, self.below, self.spares, self.hosts = folder, width, below, spares, dict(nodes)
        self.end_at: Optional[float] = None
        self.heard = time.monotonic()
        self.code = 0
        self.cleaning: List["subprocess.Popen[bytes]"] = []
        self.selector = selectors.DefaultSelector()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        self.running: Dict[int, Connection] = {}
        if below:
            self.selector.register(0, selectors.EVENT_READ)
            self.start(nodes[:1], here=True)
        for group in groups(nodes[1:] if below else nodes, width):
            if not self.ending():
                self.start(group)
        if self.ending():
            self.end()

    def start(self, nodes: Nodes, here: bool = False) -> None:
        """Start nodes: the first one directly, and by it the others."""
        script = shlex.quote(os.path.join(self.folder, "node.sh"))
        hint = "set `shared_folders: false` below `scheduler:` in the site profile"
        missing = shlex.quote("the run folder is not shared with this host: %s; %s" % (self.folder, hint))
        command = "exec bash %s begin %d" % (script, nodes[0][0])
        if len(nodes) > 1:
            words = ["python3", *program("fan_out"), "--width", str(self.width), "--below", self.folder]
            words += [word for node, host in nodes for word in (str(node), host)]
            command = "exec %s" % " ".join(map(shlex.quote, words))
        line = "[ -r %s ] || { echo %s >&2; exit 1; }; %s" % (script, missing, command)
        connection = Connection(nodes, line, here)
        self.running[connection.node] = connection
        connection.register(self.selector, connection)

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
            if self.below and now - self.heard > SILENT_S:
                self.end()
            if now - beat >= BEAT_S:
                beat = now
                for connection in self.running.values():
                    connection.write(b"\n")
            for connection in self.running.values():
                if not connection.started and now - connection.begin > START_S:
                    connection.give_up()
            for node in [node for node, connection in self.running.items() if connection.ended()]:
                self.on_end(self.running.pop(node))
            if self.end_at is not None and now > self.end_at:
                for connection in self.running.values():
                    connection.give_up()
                break
        end_at = time.monotonic() + LEFT_S
        for process in self.cleaning:
            try:
                process.wait(timeout=max(end_at - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
        if self.below:
            report("over")
        return self.code

    def read(self, seconds: float) -> None:
        """Read what the hosts print, and the lines from above."""
        for key, data in arrived(self.selector, seconds):
            connection = key.data
            if connection is None:
                self.heard = time.monotonic()
                if not data:
                    self.end()
            elif key.fileobj is connection.process.stderr:
                connection.messages_came(data)
            else:
                self.on_lines(connection, connection.lines_of(data))

    def on_lines(self, connection: Connection, lines: List[str]) -> None:
        """Take the reports of a host."""
        for line in lines:
            word, _, rest = line.partition(" ")
            node, _, rest = rest.partition(" ")
            code, _, text = rest.partition(" ")
            if word == "over":
                connection.over = True
            elif word == "lost" and code.isdecimal() and node in connection.below:
                self.on_lost(int(node), int(code), text)

    def on_lost(self, node: int, code: int, text: str) -> None:
        """End the job, because a host was lost: say so where the job began, by this process or by one above."""
        if self.ending():
            return
        if self.spares:
            say("the job goes on without the spare %s: %s" % (self.hosts[node], text))
            return
        self.code = code
        if self.below:
            report("lost %d %d %s" % (node, code, text))
        else:
            say("%s: %s" % (self.hosts[node], text))
            note(os.path.join(self.folder, "logs", "node-%d.exit" % node), code)
        self.end()

    def on_end(self, connection: Connection) -> None:
        """Note the end of a connection: one that was lost ends the job."""
        for stream in (connection.process.stdout, connection.process.stderr):
            if stream is not None and stream in self.selector.get_map():
                self.selector.unregister(stream)
        self.on_lines(connection, connection.last_lines())
        code = connection.code or 0
        code = 128 - code if code < 0 else code
        if self.ending() or connection.over or (connection.started and code == 0 and not connection.relays):
            self.code = self.code or code
            return
        self.end_what_is_left(connection)
        code = code or 1
        what = "the connection" if code == SSH_FAILED else "its part of the job"
        why = connection.reason() or ("" if connection.started else ": its login shell ended before the job began")
        if not connection.started and time.monotonic() - connection.begin > START_S:
            why = ": it did not begin within %d s" % START_S
        self.on_lost(connection.node, code, "%s ended with code %d%s" % (what, code, why))

    def end_what_is_left(self, connection: Connection) -> None:
        """End the processes of a host whose connection was lost: its end may have been that of the agent there."""
        words = ["python3", *program("on_host"), "--end", self.folder, str(connection.node)]
        ssh = ["ssh", "-oConnectTimeout=3", *SSH[1:], "--", connection.host]  # ssh takes the first of an option
        process = subprocess.Popen(
            ["bash", "-s"] if connection.here else [*ssh, "bash -s"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if process.stdin is not None:
            process.stdin.write(("exec %s\n" % " ".join(map(shlex.quote, words))).encode())
            process.stdin.close()
        self.cleaning.append(process)


def groups(nodes: Nodes, width: int) -> List[Nodes]:
    """At most `width` groups of neighbours, as even as possible."""
    count = min(width, len(nodes))
    return [nodes[len(nodes) * one // count : len(nodes) * (one + 1) // count] for one in range(count)]


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


def report(line: str) -> None:
    """Write a line for the host above, which may be gone."""
    try:
        os.write(1, ("%s\n" % line).encode("utf-8", "replace"))
    except OSError:
        pass


def main(words: List[str]) -> int:
    """Run it."""
    width, below = WIDTH, False
    if words[0] == "--width":
        width, words = int(words[1]), words[2:]
    if words[0] == "--below":
        below, words = True, words[1:]
    folder, words = words[0], words[1:]
    spares = words[:1] == ["--spares"]
    if spares:
        words = words[1:]
        width = len(words)  # none of them starts others
    nodes = [(int(node), host) for node, host in zip(words[::2], words[1::2])] if below else list(enumerate(words))
    return FanOut(folder, nodes, width, below, spares).run()
