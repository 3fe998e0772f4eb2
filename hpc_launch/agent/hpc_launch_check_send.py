"""The connection of a node to the judge, for hpc_launch_check.py: signed lines in both directions.

Standard library of Python 3.6 or later.
"""

import hmac
import json
import os
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from hpc_launch_check_host import Result, result, unknown

CONNECT_S = 4.0
TASK_S = 600.0
"""How long the judge may take to send the next task: until then, it waits for other nodes."""
KEY = "check-key"
"""A file that only the user can read: other users of the machine must not report for a node."""
LONGEST_HELLO = 1 << 20


class Reports:
    """What this node sends to the judge: a line for each group of results, signed with the key of the run."""

    def __init__(self, attempt: str, node: str, master: str, port: int) -> None:
        self.node, self.place = node, "%s port %d" % (master, port)
        self.key_path = os.path.join(attempt, "agent", KEY)
        self.master, self.port = master, port
        self.lines: List[bytes] = []
        self.printed = 0
        self.key = self.nonce = b""
        self.peer: Optional[socket.socket] = None
        self.files: Dict[str, str] = {}
        self.ahead: Optional[float] = None

    def connect(self) -> List[Result]:
        """Connect to the judge; returns what that shows about the network."""
        port, link = result(True, self.place), unknown("no connection")
        try:
            self.peer = connection(self.master, self.port)
            sent = time.time()
            self.peer.sendall(b"hello\n")
            hello = json.loads(line_of(self.peer).decode())
            self.ahead = (sent + time.time()) / 2 - hello["time"]
            self.nonce, self.files = hello["nonce"].encode(), hello["files"]
            link = transfer(self.peer, hello["bytes"], self.place)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if self.peer is not None:
                self.peer.close()
            self.peer = None
            port = result(False, "cannot reach %s: %s" % (self.place, error))
        try:
            with open(self.key_path, "rb") as file:
                self.key = file.read()
        except OSError:  # not the folder of the first node
            self.peer = None
        return [dict(port, check="rendezvous port"), dict(link, check="network")]

    def send(self, **words: Any) -> None:
        """Send a line; without a connection, print all lines: srun writes them to the first node's check.log."""
        data = json.dumps(dict(words, node=self.node)).encode()
        self.lines.append(data)
        try:
            if self.peer is None:
                raise OSError("no connection")
            self.peer.sendall(hmac.new(self.key, self.nonce + data, "sha256").hexdigest().encode() + data + b"\n")
        except OSError:
            self.peer = None
            for line in self.lines[self.printed :]:
                print(line.decode(), flush=True)
            self.printed = len(self.lines)

    def task(self, place: Tuple[str, int]) -> Dict[str, Any]:
        """Say where this node waits for a task, and wait for it; empty when there are none left."""
        self.send(place=place)
        try:
            if self.peer is None:
                return {}
            self.peer.settimeout(TASK_S)
            line = line_of(self.peer)
            self.peer.settimeout(CONNECT_S)
            proof = hmac.new(self.key, b"task" + self.nonce + line[64:-1], "sha256").hexdigest().encode()
            task: Dict[str, Any] = json.loads(line[64:].decode()) if hmac.compare_digest(proof, line[:64]) else {}
            return task
        except (OSError, ValueError):
            return {}

    def close(self) -> None:
        """Wait until the judge has read everything."""
        if self.peer is not None:
            try:
                self.peer.shutdown(socket.SHUT_WR)
                self.peer.settimeout(CONNECT_S)
                self.peer.recv(1)
            except OSError:
                pass


def connection(master: str, port: int) -> socket.socket:
    """A connection to the judge. Raises OSError."""
    end = time.monotonic() + CONNECT_S
    while True:
        try:
            peer = socket.create_connection((master, port), timeout=CONNECT_S)
        except ConnectionRefusedError:  # the judge may not listen yet
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            peer.settimeout(CONNECT_S)
            return peer


def line_of(peer: socket.socket) -> bytes:
    """A line that the judge sends. Raises OSError."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LONGEST_HELLO:
        data = peer.recv(1 << 16)
        if not data:
            raise OSError("the connection was closed")
        line += data
    return line


def transfer(peer: socket.socket, size: int, place: str) -> Result:
    """How long the judge takes to receive `size` bytes: compared between nodes."""
    began = time.monotonic()
    try:
        peer.sendall(b"\0" * size)
        line_of(peer)
    except socket.timeout:  # what was sent still fills the connection, so that nothing can follow
        raise OSError("%d KiB do not arrive within %d s" % (size // 1024, CONNECT_S)) from None
    seconds = time.monotonic() - began
    return result(True, "%d KiB to %s in %.3f s" % (size // 1024, place, seconds), seconds)
