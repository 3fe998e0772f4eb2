"""Starts the node check on each host by ssh, in the place of srun.

    check_ssh.py ATTEMPT_FOLDER LOG HOST...

Runs ATTEMPT_FOLDER/check.sh on the hosts at the same time, and appends the reports that they print to LOG. A host that
cannot be reached, or cannot start the check, gets a report that says why. On SIGTERM, the hosts end their checks.

Self-contained: standard library of Python 3.6 or later.
"""

import json
import os
from typing import List, Optional, Set

from hpc_launch.agent import program
from hpc_launch.agent.fan_out import SSH, Connection, FanOut, last_line, shown, where_shared

NO_PROGRAM = 127


class Checks(FanOut):
    """The checks of all hosts."""

    # Less than what the judge waits for the last hosts. ssh takes the first value of an option.
    ssh = ("ssh", "-oConnectTimeout=8", *SSH[1:])

    def __init__(self, folder: str, log: str, hosts: List[str]) -> None:
        super().__init__(folder, hosts)
        self.log = open(log, "ab", buffering=0)
        self.reported: Set[str] = set()

    def line(self, node: int) -> str:
        script = os.path.join(self.folder, "check.sh")
        return where_shared(script, ["python3", *program("on_host"), "bash", script, str(node)])

    def on_output(self, connection: Connection) -> None:
        """Keep the reports of this host among the lines that are complete."""
        if not connection.started or connection.too_long:
            return
        *lines, connection.output = connection.output.split(b"\n")
        for line in lines:
            if line.startswith(b"{") and node_of(line) == connection.host:
                self.reported.add(connection.host)
                self.log.write(line + b"\n")

    def on_end(self, connection: Connection) -> None:
        """Report for a host that cannot."""
        for line in connection.messages.splitlines():
            self.log.write(("%s: %s\n" % (connection.host, shown(line))).encode())
        code = connection.code or 0
        if self.end_at is not None or code == 0 or connection.host in self.reported:
            return
        text = last_line(connection.messages) or "the shell that came over ssh ended with code %d" % code
        if code == NO_PROGRAM and "python3" in text:
            text = "no python3"
        results = [{"check": "start", "ok": False, "text": text}]
        self.log.write(json.dumps({"node": connection.host, "done": True, "results": results}).encode() + b"\n")


def node_of(line: bytes) -> Optional[str]:
    """The node that a report is about."""
    try:
        return str(json.loads(line.decode())["node"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def main(words: List[str]) -> None:
    """Check the hosts."""
    Checks(words[0], words[1], words[2:]).run()
