"""The port of the rendezvous during the node check: each node connects and sends some data, which shows its network.

Nothing that arrives here is believed; the results of the nodes are in files. Other users can connect, too: there is a
limit for the connections, and the oldest one makes room. Standard library of Python 3.6 or later.
"""

import errno
import resource
import selectors
import socket
import time
from typing import Dict

from hpc_launch.agent.check_send import ANSWER

STRANGERS = 64
"""Connections at the same time, besides two for each node."""
LONGEST_S = 10.0


class Port:
    """Answers each connection, once all its data has come, with the time."""

    def __init__(self, port: int, nodes: int) -> None:
        """Start to listen. Raises OSError if the port cannot be used."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for each node
        self.most, self.turned_away = 2 * nodes + STRANGERS, 0
        self.open: Dict[socket.socket, float] = {}
        """The connections and since when they exist, the oldest first."""
        self.selector = selectors.DefaultSelector()
        self.server = bound(port)
        self.server.listen(4096)
        self.server.setblocking(False)
        self.selector.register(self.server, selectors.EVENT_READ)

    @property
    def crowded(self) -> bool:
        """Whether so many connections were closed early that a node may have found no place."""
        return self.turned_away > self.most

    def serve(self, seconds: float) -> None:
        """Answer what has come, or wait for it."""
        for key, _ in self.selector.select(seconds):
            if key.fileobj is self.server:
                self.accept()
            elif key.fileobj in self.open:
                self.read(key.data)
        while self.open and next(iter(self.open.values())) < time.monotonic() - LONGEST_S:
            self.close_oldest()

    def accept(self) -> None:
        """Accept what waits."""
        for _ in range(1024):
            try:
                peer = self.server.accept()[0]
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self.open:
                    self.close_oldest()
                return
            peer.setblocking(False)
            self.selector.register(peer, selectors.EVENT_READ, peer)
            self.open[peer] = time.monotonic()
            if len(self.open) > self.most:
                self.close_oldest()

    def read(self, peer: socket.socket) -> None:
        """Read what a node sends; answer at the end."""
        try:
            if peer.recv(1 << 16):
                return
            peer.send(ANSWER + b"%.6f\n" % time.time())
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close(peer)

    def close_oldest(self) -> None:
        """Make room."""
        self.turned_away += 1
        self.close(next(iter(self.open)))

    def close(self, peer: socket.socket) -> None:
        """Close a connection."""
        del self.open[peer]
        self.selector.unregister(peer)
        peer.close()

    def end(self) -> None:
        """Free the port for the training."""
        for peer in list(self.open):
            self.close(peer)
        self.server.close()


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
