"""The connections of the nodes to hpc_launch_judge.py: a greeting, bytes that measure the link, then signed lines.

Standard library of Python 3.6 or later.
"""

import hmac
import json
import os
import resource
import selectors
import socket
import time
from typing import Dict

LONGEST = 1 << 20


class Peer:
    """The connection of one node: a greeting, then SENT bytes, then signed lines."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.data = b""
        self.nonce = os.urandom(16).hex().encode()
        self.greeted = False
        self.bulk = 0
        """How many bytes are still to come that only measure the link."""


class Listener:
    """Listens on a port, and passes on the lines that have the right signature."""

    def __init__(self, key_path: str, sent: int, files: Dict[str, str]) -> None:
        self.sent, self.files = sent, files
        self.selector = selectors.DefaultSelector()
        self.key = os.urandom(32).hex().encode()
        with open(os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(self.key)

    def keep(self, report: bytes, peer: Peer) -> None:
        """Keep a signed line."""
        raise NotImplementedError

    def listen(self, port: int) -> socket.socket:
        """Start to listen. Raises OSError if the port cannot be used."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for each node
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", port))
        server.listen(4096)
        server.setblocking(False)
        self.selector.register(server, selectors.EVENT_READ)
        return server

    def serve(self, server: socket.socket, seconds: float) -> None:
        """Read what has come, or wait for it."""
        for key, _ in self.selector.select(seconds):
            if key.fileobj is server:
                self.accept(server)
            else:
                self.read(key.data)

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
            good = good and all(self.signed(line, peer) for line in lines)
        if not good or len(peer.data) > LONGEST or (not peer.greeted and len(peer.data) > 6):
            self.selector.unregister(peer.connection)
            peer.connection.close()

    def answer(self, peer: Peer, data: bytes) -> bool:
        """Send a few bytes, which fit into the buffer of any connection."""
        try:
            return peer.connection.send(data) == len(data)
        except OSError:
            return False

    def proof(self, data: bytes) -> bytes:
        """The signature of some data."""
        return hmac.new(self.key, data, "sha256").hexdigest().encode()

    def signed(self, line: bytes, peer: Peer) -> bool:
        """Keep a line if it has the right signature."""
        report = line[64:]
        if not hmac.compare_digest(self.proof(peer.nonce + report), line[:64]):
            return False
        self.keep(report, peer)
        return True

    def order(self, peer: Peer, data: bytes) -> bool:
        """Send a signed line to a node."""
        return self.answer(peer, self.proof(b"task" + peer.nonce + data) + data + b"\n")
