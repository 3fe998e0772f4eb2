"""Starts the node check on each host by ssh, in the place of srun.

    check_ssh.py ATTEMPT_FOLDER LOG HOST...

Runs ATTEMPT_FOLDER/check.sh on the hosts at the same time, and appends the reports that they print to LOG. A host that
cannot be reached, or cannot start the check, gets a report that says why. On SIGTERM, the hosts end their checks.

Self-contained: standard library of Python 3.6 or later.
"""

import json
import os
import selectors
import shlex
import signal
import time
from typing import Any, Dict, List, Optional

from hpc_launch.agent import program
from hpc_launch.agent.connection import BEAT_S, END_S, SSH, Connection, arrived, shown

CONNECT = ["ssh", "-oConnectTimeout=8", *SSH[1:]]
"""Less than what the judge waits for the last hosts. ssh takes the first value of an option."""
LONGEST = 1 << 20
"""Bytes that a host may print."""
NO_PROGRAM = 127


class Host:
    """A host and what it has printed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.data = b""
        self.size = 0
        self.reported = False

    def keep(self, data: bytes) -> List[bytes]:
        """The reports of this host among the lines that are complete."""
        self.size += len(data)
        if self.size > LONGEST:
            return []
        *lines, self.data = (self.data + data).split(b"\n")
        found = [line for line in lines if line.startswith(b"{") and node_of(line) == self.connection.host]
        self.reported = self.reported or bool(found)
        return found


class Checks:
    """The checks of all hosts."""

    def __init__(self, folder: str, log: str, hosts: List[str]) -> None:
        self.log = open(log, "ab", buffering=0)
        self.end_at: Optional[float] = None
        self.running: List[Host] = []
        self.selector = selectors.DefaultSelector()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        script = os.path.join(folder, "check.sh")
        for node, name in enumerate(hosts):
            missing = "the run folder is not shared with this host: %s" % folder
            words = ["python3", *program("on_host"), "bash", script, str(node)]
            line = "[ -r %s ] || { echo %s >&2; exit 1; }; " % (shlex.quote(script), shlex.quote(missing))
            line += "exec %s" % " ".join(map(shlex.quote, words))
            host = Host(Connection(node, name, line, CONNECT))
            self.running.append(host)
            host.connection.register(self.selector, host)

    def on_signal(self, number: int, _: object) -> None:
        if self.end_at is None:
            self.end_at = time.monotonic() + END_S
        for host in self.running:
            host.connection.close()

    def run(self) -> None:
        """Until all have ended."""
        beat = 0.0
        while self.running:
            self.read(0.3)
            now = time.monotonic()
            if now - beat >= BEAT_S:
                beat = now
                for host in self.running:
                    host.connection.write(b"\n")
            for host in [host for host in self.running if host.connection.ended()]:
                self.running.remove(host)
                self.on_end(host)
            if self.end_at is not None and now > self.end_at:
                for host in self.running:
                    host.connection.process.kill()

    def read(self, seconds: float) -> None:
        """Read what the hosts print: reports, and the complaints of ssh and of the shells."""
        for key, data in arrived(self.selector, seconds):
            host = key.data
            if key.fileobj is host.connection.process.stderr:
                host.connection.take(key.fileobj, data)
            else:
                for line in host.keep(data):
                    self.log.write(line + b"\n")

    def on_end(self, host: Host) -> None:
        """Report for a host that cannot."""
        self.read(0.3)  # its last words
        code = host.connection.code or 0
        for said in host.connection.messages.splitlines():
            self.log.write(("%s: %s\n" % (host.connection.host, shown(said))).encode())
        if self.end_at is not None or code == 0 or host.reported:
            return
        self.log.write(json.dumps(failure(host.connection, code)).encode() + b"\n")


def failure(connection: Connection, code: int) -> Dict[str, Any]:
    """The report for a host on which the check did not start."""
    said = connection.reason()[2:]
    if code == NO_PROGRAM:
        text = "no python3" if "python3" in said else said
    else:
        text = said or "the shell that came over ssh ended with code %d" % code
    return {"node": connection.host, "done": True, "results": [{"check": "start", "ok": False, "text": text}]}


def node_of(line: bytes) -> Optional[str]:
    """The node that a report is about."""
    try:
        words = json.loads(line.decode())
        return str(words["node"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def main(words: List[str]) -> None:
    """Check the hosts."""
    Checks(words[0], words[1], words[2:]).run()
