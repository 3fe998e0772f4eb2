"""The connection of a node to the judge, for check.py: signed lines in both directions.

Standard library of Python 3.6 or later.
"""

import hmac
import json
import os
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from hpc_launch.agent.check_host import Result, result, unknown

CONNECT_S = 4.0
DEADLINE_S = 8.0
"""How long the connection, the greeting and the transfer may take together."""
BEAT_S = 0.5
"""How often a node at least says that it is alive; the judge may ask for less."""
TASK_S = 600.0
"""How long the judge may take to send the next task: until then, it waits for other nodes."""
KEY = "check-key"
"""A file that only the user can read: other users of the machine must not report for a node."""
KEY_S = 0.5
"""How long a shared folder may take to show the key."""
LONGEST, MOST_SENT = 1 << 16, 1 << 18
"""Bytes of a line of the judge, and bytes that it may ask for."""


class Reports:
    """What this node sends to the judge: a line for each group of results, signed with the key of the run."""

    def __init__(self, attempt: str, node: str, master: str, port: int, part: str = "") -> None:
        self.node, self.place = node, "%s port %d" % (master, port)
        self.own = {"node": node, "part": part} if part else {"node": node}
        self.attempt = attempt
        self.key_path = os.path.join(attempt, "agent", KEY)
        self.master, self.port = master, port
        self.lines: List[bytes] = []
        self.printed = 0
        self.key = self.nonce = b""
        self.peer: Optional[socket.socket] = None
        self.files: Dict[str, str] = {}
        self.ahead: Optional[float] = None
        self.beat_s = BEAT_S

    def connect(self) -> List[Result]:
        """Connect to the judge; returns what that shows about the network."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                return self.greet(end)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self.drop()
                if isinstance(error, ConnectionResetError) and time.monotonic() < end - CONNECT_S:
                    time.sleep(0.2)  # the judge closes connections when it has too many
                    continue
                port = result(False, "cannot reach %s: %s" % (self.place, error))
                return [dict(port, check="rendezvous port"), dict(unknown("no connection"), check="network")]

    def greet(self, end: float) -> List[Result]:
        """Connect once. Only a judge that knows the key is believed, for others may listen in its place."""
        self.peer = connection(self.master, self.port, end)
        port = dict(result(True, self.place), check="rendezvous port")
        if not self.read_key():
            self.drop()
            run = os.path.dirname(os.path.dirname(self.attempt))
            folder = result(False, "%s is not the folder of the first node" % run)
            return [port, dict(unknown("no key"), check="network"), dict(folder, check="shared folder " + run)]
        nonce, sent = os.urandom(16).hex().encode(), time.time()
        self.peer.sendall(b"hello " + nonce + b"\n")
        line = line_of(self.peer, min(end, time.monotonic() + CONNECT_S))
        if not hmac.compare_digest(self.proof(b"hello" + nonce + line[64:-1]), line[:64]):
            raise OSError("what answers is not the node check")
        hello = json.loads(line[64:].decode())
        ahead = (sent + time.time()) / 2 - hello["time"]
        link = transfer(self.peer, hello["bytes"], self.place, end)
        self.peer.settimeout(CONNECT_S)
        self.nonce, self.files, self.ahead = hello["nonce"].encode(), hello["files"], ahead
        self.beat_s = max(BEAT_S, float(hello["beat"]))
        self.send()  # the judge reads only a short line from a peer that has not proved anything
        return [port, dict(link, check="network")]

    def read_key(self) -> bool:
        """Read the key, which the judge has written before it listens; a shared folder may show it late."""
        end = time.monotonic() + KEY_S
        while True:
            try:
                os.scandir(os.path.dirname(self.key_path)).close()  # makes the client of a file server look again
                with open(self.key_path, "rb") as file:
                    self.key = file.read()
            except OSError:
                pass
            if self.key or time.monotonic() > end:
                return bool(self.key)
            time.sleep(0.2)

    def proof(self, data: bytes) -> bytes:
        """The signature of some data."""
        return hmac.new(self.key, data, "sha256").hexdigest().encode()

    def drop(self) -> None:
        """Give up the connection."""
        if self.peer is not None:
            self.peer.close()
        self.peer = None

    def send(self, **words: Any) -> None:
        """Send a line; without a connection, print all lines: srun writes them to the first node's check.log."""
        data = json.dumps(dict(self.own, **words)).encode()
        self.lines.append(data)
        try:
            self.sign(data)
        except OSError:
            self.peer = None
            for line in self.lines[self.printed :]:
                print(line.decode(), flush=True)
            self.printed = len(self.lines)

    def beat(self) -> None:
        """Tell the judge that this node is alive."""
        data = json.dumps(self.own).encode()
        try:
            self.sign(data)
        except OSError:  # the next result is printed
            self.peer = None

    def sign(self, data: bytes) -> None:
        """Send a signed line. Raises OSError."""
        if self.peer is None:
            raise OSError("no connection")
        self.peer.sendall(self.proof(self.nonce + data) + data + b"\n")

    def task(self, place: Tuple[str, int]) -> Dict[str, Any]:
        """Say where this node waits for a task, and wait for it; empty when there are none left."""
        self.send(place=place)
        try:
            if self.peer is None:
                return {}
            line = line_of(self.peer, time.monotonic() + TASK_S)
            self.peer.settimeout(CONNECT_S)
            proof = self.proof(b"task" + self.nonce + line[64:-1])
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


def connection(master: str, port: int, end: float) -> socket.socket:
    """A connection to the judge. Raises OSError."""
    end = min(end, time.monotonic() + CONNECT_S)
    while True:
        try:
            return socket.create_connection((master, port), timeout=seconds_to(end))
        except ConnectionRefusedError:  # the judge may not listen yet
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def seconds_to(end: float) -> float:
    """What is left of the time, as a limit for one operation."""
    return max(0.01, end - time.monotonic())


def line_of(peer: socket.socket, end: float) -> bytes:
    """A line that the judge sends. Raises OSError."""
    line = b""
    while not line.endswith(b"\n"):
        if time.monotonic() > end:
            raise socket.timeout("timed out")
        peer.settimeout(seconds_to(end))
        data = peer.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the connection was closed")
        line += data
        if len(line) > LONGEST:
            raise OSError("the answer is too long")
    return line


def transfer(peer: socket.socket, size: int, place: str, end: float) -> Result:
    """How long the judge takes to receive `size` bytes: compared between nodes."""
    if not 0 <= size <= MOST_SENT:
        raise ValueError("%d bytes are too many" % size)
    began = time.monotonic()
    end = min(end, began + CONNECT_S)
    try:
        peer.settimeout(seconds_to(end))
        peer.sendall(b"\0" * size)
        line_of(peer, end)
    except socket.timeout:  # what was sent still fills the connection, so that nothing can follow
        raise OSError("%d KiB do not arrive within %d s" % (size // 1024, CONNECT_S)) from None
    seconds = time.monotonic() - began
    return result(True, "%d KiB to %s in %.3f s" % (size // 1024, place, seconds), seconds)
