"""The connections between the processes of smoke.py: messages with their length, and who may connect.

Self-contained: standard library of Python 3.6 or later.
"""

import hashlib
import hmac
import os
import select
import socket
import struct
import time
from typing import Dict, List, Optional

WAIT_S = 60.0
"""Seconds that the other processes wait for the first one, which may start later on a cold file system."""
LONGEST_NAME = 1024
"""Bytes of a host name, and of the other short messages."""
GREETING_S = 2.0
"""Seconds that a process has to prove that it knows the key. Another user may connect to the port, too."""
MOST_STRANGERS = 64


def accepted(server: socket.socket, key: bytes, count: int) -> List[socket.socket]:
    """The connections of the other processes: those that know the key, which only this user can read.

    Strangers can connect, too: none of them keeps the others waiting. Raises OSError when the time is over.
    """
    peers: List[socket.socket] = []
    waiting: Dict[socket.socket, Stranger] = {}
    end = time.monotonic() + WAIT_S
    try:
        while len(peers) < count:
            now = time.monotonic()
            if now > end:
                raise OSError("%d of %d other processes did not connect" % (count - len(peers), count))
            for peer in select.select([server, *waiting], [], [], 0.5)[0]:
                if peer is server:
                    stranger = Stranger(server.accept()[0])
                    waiting[stranger.peer] = stranger
                    continue
                known = waiting[peer].known(key)
                if known is not None:
                    del waiting[peer]
                    peers.append(peer) if known else peer.close()
            late = [one for one in waiting.values() if one.since < now - GREETING_S]
            late += list(waiting.values())[: max(0, len(waiting) - MOST_STRANGERS - count)]
            for stranger in late:
                waiting.pop(stranger.peer, None)
                stranger.peer.close()
    finally:
        for peer in waiting:
            peer.close()
    for peer in peers:
        peer.settimeout(WAIT_S)
    return peers


class Stranger:
    """A connection that has not proved yet that it knows the key."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer, self.since = peer, time.monotonic()
        self.challenge = os.urandom(32)
        self.data = b""
        peer.setblocking(False)
        send(peer, self.challenge)  # fits into the socket's buffer

    def known(self, key: bytes) -> Optional[bool]:
        """Whether it has proved it; None while its answer is incomplete."""
        answer = proof(key, self.challenge)
        wanted = struct.pack("!Q", len(answer)) + answer
        try:
            data = self.peer.recv(len(wanted) - len(self.data))
        except BlockingIOError:
            return None
        except OSError:
            return False
        self.data += data
        if data and len(self.data) < len(wanted):
            return None
        return hmac.compare_digest(self.data, wanted)


def proof(key: bytes, challenge: bytes) -> bytes:
    """What a process that knows the key answers to a challenge."""
    return hmac.new(key, challenge, hashlib.sha256).digest()


def send(peer: socket.socket, data: bytes) -> None:
    """Send a message, prefixed with its length."""
    peer.sendall(struct.pack("!Q", len(data)) + data)


def receive(peer: socket.socket, most: int) -> bytes:
    """Receive one message of at most so many bytes. Raises OSError if it is longer, or if the peer is gone."""
    (length,) = struct.unpack("!Q", _exactly(peer, 8))
    if length > most:
        raise OSError("the peer announced %d bytes" % length)
    return _exactly(peer, length)


def _exactly(peer: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = peer.recv(min(count, 1 << 20))
        if not part:
            raise OSError("the peer closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
