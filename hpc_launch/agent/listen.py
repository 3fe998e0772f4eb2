"""The connections of the nodes to judge.py: a greeting, bytes that measure the link, then signed lines.

Other users can connect, too. Until a line has the right signature, a connection counts as a stranger's: there is a
limit for their number, their bytes and their time, and the address with most of them loses its oldest one first.

Standard library of Python 3.6 or later.
"""

import errno
import hmac
import json
import os
import re
import resource
import selectors
import socket
import time
from typing import Dict, List, Match, Optional

LONGEST, FIRST = 1 << 20, 1 << 12
"""Bytes of a line, and of the first one."""
GREETING = re.compile(b"hello ([0-9a-f]{32})")
BEAT_PER_NODE_S = 0.0005
"""How often a node says that it is alive: 2000 lines in a second, which takes a tenth of a CPU."""
STRANGERS = 64
"""Connections without a signed line, besides two for each node."""
PROOF_S, SWEEP_S = 10.0, 1.0
"""How long a connection may exist without a signed line."""


class Peer:
    """The connection of one node: a greeting, then SENT bytes, then signed lines."""

    def __init__(self, connection: socket.socket, address: str = "") -> None:
        self.connection, self.address = connection, address
        self.since = time.monotonic()
        self.known = self.closed = False
        """Whether it has sent a signed line; whether it was closed."""
        self.data = b""
        self.nonce = os.urandom(16).hex().encode()
        self.greeted = False
        self.bulk = 0
        """How many bytes are still to come that only measure the link."""


class Listener:
    """Listens on a port, and passes on the lines that have the right signature."""

    def __init__(self, key_path: str, sent: int, files: Dict[str, str], nodes: int) -> None:
        self.sent, self.files = sent, files
        self.most = 2 * nodes + STRANGERS
        self.beat_s = BEAT_PER_NODE_S * nodes
        self.strangers: Dict[str, List[Peer]] = {}
        """By address, the oldest first."""
        self.unproved = 0
        self.turned_away = 0
        """Connections that ended without a signed line."""
        self.swept = 0.0
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
        server = bound(port)
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
        now = time.monotonic()
        if now > self.swept + SWEEP_S:
            self.swept = now
            late = [peer for peers in self.strangers.values() for peer in peers if peer.since < now - PROOF_S]
            for peer in late:
                self.close(peer)

    @property
    def crowded(self) -> bool:
        """Whether strangers connected so often that a node may have found no place."""
        return self.turned_away > self.most

    def accept(self, server: socket.socket) -> None:
        """Accept what waits."""
        for _ in range(1024):
            try:
                connection, address = server.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self.close_a_stranger():
                    time.sleep(SWEEP_S / 20)
                return
            self.enter(connection, str(address[0]))

    def enter(self, connection: socket.socket, address: str) -> None:
        """Count a new connection as a stranger's."""
        connection.setblocking(False)
        peer = Peer(connection, address)
        self.selector.register(connection, selectors.EVENT_READ, peer)
        self.strangers.setdefault(peer.address, []).append(peer)
        self.unproved += 1
        if self.unproved > self.most:
            self.close_a_stranger()

    def close_a_stranger(self) -> bool:
        """Close the oldest connection without a signed line, of the address that has most of them."""
        if not self.strangers:
            return False
        self.close(max(self.strangers.values(), key=len)[0])
        return True

    def trust(self, peer: Peer) -> None:
        """Count a peer no longer as a stranger."""
        peers = self.strangers.get(peer.address, [])
        if peer in peers:
            peers.remove(peer)
            self.unproved -= 1
        if not peers:
            self.strangers.pop(peer.address, None)

    def close(self, peer: Peer) -> None:
        """Close a connection."""
        if not peer.closed:
            peer.closed = True
            self.turned_away += not peer.known
            self.trust(peer)
            self.selector.unregister(peer.connection)
            peer.connection.close()

    def read(self, peer: Peer) -> None:
        """Read what a node sends."""
        if peer.closed:
            return
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
        if not peer.greeted and b"\n" in peer.data:
            greeting, _, peer.data = peer.data.partition(b"\n")
            good = self.greet(peer, GREETING.fullmatch(greeting))
        elif skipped and not peer.bulk:
            good = self.answer(peer, b"\n")
        elif peer.greeted:
            *lines, peer.data = peer.data.split(b"\n")
            good = good and all(self.signed(line, peer) for line in lines)
        if not good or len(peer.data) > (LONGEST if peer.known else FIRST):
            self.close(peer)

    def greet(self, peer: Peer, greeting: Optional[Match[bytes]]) -> bool:
        """Answer a greeting, with a proof for the one who greets."""
        if greeting is None:
            return False
        peer.greeted, peer.bulk = True, self.sent
        words = {"time": time.time(), "files": self.files, "nonce": peer.nonce.decode(), "bytes": self.sent}
        words["beat"] = self.beat_s
        data = json.dumps(words).encode()
        return self.answer(peer, self.proof(b"hello" + greeting.group(1) + data) + data + b"\n")

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
        if not peer.known:
            peer.known = True
            self.trust(peer)
        self.keep(report, peer)
        return True

    def order(self, peer: Peer, data: bytes) -> bool:
        """Send a signed line to a node."""
        return self.answer(peer, self.proof(b"task" + peer.nonce + data) + data + b"\n")


def bound(port: int) -> socket.socket:
    """A socket for IPv4 and IPv6, so that nobody else can take the port of the other one. Raises OSError."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        server = None
        try:
            server = socket.socket(family)
            if family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, port))
            return server
        except OSError as error:
            if server is not None:
                server.close()
            if family == socket.AF_INET or error.errno == errno.EADDRINUSE:
                raise
    raise OSError("no network")
