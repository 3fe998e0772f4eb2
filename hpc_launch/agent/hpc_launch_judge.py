"""The node check on the first node: collect the results of all nodes and name those that are not fit for the job.

    python3 -I hpc_launch_judge.py ATTEMPT_DIR --job ID --port PORT --node NAME... [--memory-mib N] [--shared DIR...]

Self-contained: standard library of Python 3.6 or later, run by the job's script. It listens on the port that the
training's rendezvous will use, until each node has reported (hpc_launch_check.py) or its time is over
(hpc_launch_reports.py).

    ATTEMPT_DIR/node-check.json     the outcome; created once
    stderr                          one line for each finding, for the job's log

hpc_launch_compare.py decides which nodes are bad. Exits with 76 if a node is bad, else with 0.
"""

import argparse
import hmac
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python -I leaves it out

from hpc_launch_compare import Finding, compare, judged
from hpc_launch_reports import Reports

BAD_NODES = 76
KEY = "check-key"
"""A file that only the user can read: other users of the machine must not report for a node."""
OVER_S = 3.0
LOOK_S = 0.25
LIMIT = 1 << 20
SENT, SENT_BY_ALL = 1 << 18, 1 << 28
"""Bytes that each node sends to measure its link, and the most that the first node receives in total."""


def say(text: str) -> None:
    """A line in the job's log."""
    sys.stderr.write("[hpc-launch %s] node check: %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), text))
    sys.stderr.flush()


class Peer:
    """The connection of one node: a greeting, then SENT bytes, then signed lines."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.data = b""
        self.nonce = os.urandom(16).hex().encode()
        self.greeted = False
        self.bulk = 0
        """How many bytes are still to come that only measure the link."""


class Judge:
    """Collects the reports of the nodes."""

    def __init__(self, attempt: str, nodes: List[str], files: Dict[str, str], memory_mib: int = 0) -> None:
        self.attempt, self.files, self.memory_mib = attempt, files, memory_mib
        self.reports = Reports(nodes)
        self.sent = min(SENT, SENT_BY_ALL // max(1, len(nodes)))
        self.began = time.monotonic()
        self.over: Optional[float] = None
        self.logged = 0
        """How much of the step's log has been read."""
        self.named: Dict[Tuple[str, str], float] = {}
        """Findings that are in the log, with the seconds since the first node began."""
        signal.signal(signal.SIGUSR1, self.step_ended)
        self.selector = selectors.DefaultSelector()
        self.key = os.urandom(32).hex().encode()
        path = os.path.join(attempt, "agent", KEY)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(self.key)

    def collect(self, port: int) -> None:
        """Wait for the reports. Raises OSError if the port cannot be used."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for each node
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", port))
        server.listen(4096)
        server.setblocking(False)
        self.selector.register(server, selectors.EVENT_READ)
        looked, took, answers = self.seconds(), 0.0, 0
        while self.reports.open:
            for key, _ in self.selector.select(LOOK_S):
                if key.fileobj is server:
                    self.accept(server)
                else:
                    self.read(key.data)
            now = self.seconds()
            if now > looked + max(LOOK_S, 10 * took):  # a look at thousands of nodes takes a while
                self.read_log()
                self.reports.look(now, self.over is not None and now > self.over)
                if answers != self.reports.answers:
                    answers = self.reports.answers
                    self.review(early=True)
                looked = self.seconds()
                took = looked - now
        server.close()

    def step_ended(self, *_: object) -> None:
        """The step that runs the checks has ended: what it sent is on its way, and no more will come."""
        self.over = self.seconds() + OVER_S

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def accept(self, server: socket.socket) -> None:
        try:
            connection = server.accept()[0]
        except OSError:
            return
        connection.setblocking(False)
        self.selector.register(connection, selectors.EVENT_READ, Peer(connection))

    def read(self, peer: Peer) -> None:
        """Read what a node sends."""
        try:
            data = peer.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        good = bool(data)
        skipped = min(peer.bulk, len(data))
        peer.bulk -= skipped
        peer.data += data[skipped:]
        if not peer.greeted and peer.data.startswith(b"hello\n"):
            peer.greeted, peer.bulk = True, self.sent
            peer.data = peer.data[6:]
            words = {"time": time.time(), "files": self.files, "nonce": peer.nonce.decode(), "bytes": self.sent}
            good = self.answer(peer, json.dumps(words).encode() + b"\n")
        elif skipped and not peer.bulk:
            good = self.answer(peer, b"\n")
        elif peer.greeted:
            *lines, peer.data = peer.data.split(b"\n")
            good = good and all(self.keep(line, peer) for line in lines)
        if not good or len(peer.data) > LIMIT or (not peer.greeted and len(peer.data) > 6):
            self.selector.unregister(peer.connection)
            peer.connection.close()

    def answer(self, peer: Peer, data: bytes) -> bool:
        """Send a few bytes, which fit into the buffer of any connection."""
        try:
            return peer.connection.send(data) == len(data)
        except OSError:
            return False

    def keep(self, line: bytes, peer: Peer) -> bool:
        """Keep a line if it has the right signature."""
        proof, report = line[:64], line[64:]
        right = hmac.new(self.key, peer.nonce + report, "sha256").hexdigest().encode()
        if not hmac.compare_digest(right, proof):
            return False
        self.reports.keep(report, self.seconds())
        return True

    def read_log(self) -> None:
        """The reports of nodes that cannot connect, and of those that cannot start the check (node_check.sh)."""
        try:
            with open(os.path.join(self.attempt, "agent", "check.log"), "rb") as file:
                file.seek(self.logged)
                *lines, _ = file.read(LIMIT).split(b"\n")
        except OSError:
            return
        for line in lines:
            self.logged += len(line) + 1
            if line.startswith(b"{"):
                self.reports.keep(line, self.seconds())

    def review(self, early: bool = False) -> Tuple[List[Finding], List[Finding], Dict[str, str]]:
        """Name bad nodes as soon as they are certain."""
        found = self.reports.results()
        compare(found, self.memory_mib)
        bad, common, unchecked = judged(found, early)
        since = self.seconds() - min(self.reports.connected, default=0.0)
        for one in bad:
            if (one["node"], one["check"]) not in self.named:
                say("%s: %s" % (one["node"], one["text"]))
            one["seconds"] = round(self.named.setdefault((one["node"], one["check"]), since), 2)
        return bad, common, unchecked


def write_tokens(folders: List[str], job: str) -> Dict[str, str]:
    """A file in each shared folder that all nodes have to see; folders that cannot be written are left out."""
    files = {}
    for folder in folders:
        path = os.path.join(folder, ".hpc-launch-check-%s" % job)
        token = os.urandom(16).hex()
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
                file.write(token)
        except OSError:
            continue
        files[path] = token
    return files


def main() -> Optional[int]:
    """Collect, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt")
    parser.add_argument("--job", default="")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--node", action="append", default=[])
    parser.add_argument("--memory-mib", type=int, default=0)
    parser.add_argument("--shared", action="append", default=[])
    args = parser.parse_known_args()[0]
    files = write_tokens(args.shared, args.job)
    judge = Judge(args.attempt, args.node, files, args.memory_mib)
    try:
        judge.collect(args.port)
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a late one would decide the exit code
        for path in files:
            os.unlink(path)
    bad, common, unchecked = judge.review()
    record: Dict[str, Any] = {
        "job_id": args.job,
        "nodes": len(args.node),
        "seconds": round(judge.seconds(), 2),
        "bad": bad,
        "common": common,
        "not_checked": unchecked,
    }
    path = os.path.join(args.attempt, "node-check.json")
    with open(path + ".new", "w") as file:
        json.dump(record, file)
    os.rename(path + ".new", path)
    for one in common:
        say("on %d of %d nodes: %s (the training starts all the same)" % (one["nodes"], len(args.node), one["text"]))
    for check, reason in sorted(unchecked.items()):
        say("not checked: %s (%s)" % (check, reason))
    if bad:
        return BAD_NODES
    say("%d %s in %.1f s" % (len(args.node), "node passed" if len(args.node) == 1 else "nodes passed", judge.seconds()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
