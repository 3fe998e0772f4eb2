"""What a node reports: lines of JSON in its file in the attempt's folder; and the port where it reaches the first node.

The judge creates `agent/check/NODE.jsonl` for each node, so that a file server shows it at once. Without that file,
where the run folder is not shared, the lines are printed: srun or ssh passes them on. Standard library of Python 3.6 or
later.

At the port of the rendezvous, each node connects and sends some data, which shows its network. Nothing that arrives
there is believed; the results of the nodes are in files. Other users can connect, too: there is a limit for the
connections, and the oldest one makes room.
"""

import errno
import json
import os
import resource
import selectors
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from hpc_launch.agent.check_host import Result, result, unknown

CONNECT_S = 4.0
DEADLINE_S = 8.0
"""How long the connection and the transfer may take together."""
FILE_S = 4.0
"""How long the folder of the reports may take to appear: the judge may start later than the node."""
COPY_S = 1.0
"""How long the node's file may take after that."""
BEAT_S = 0.5
"""How often a node at least says that it is alive; the judge may ask for less."""
TASK_S = 600.0
"""How long the judge may take to send the next task: until then, it waits for other nodes."""
LOOK_S = 0.25
ANSWER = b"hpc-launch "
"""What the judge sends to a node that has connected, followed by its time."""
FOLDER, COMMON = os.path.join("agent", "check"), "common.json"
"""In the attempt's folder; and in that folder, what the judge tells all nodes."""


def report_file(attempt: str, node: str) -> str:
    """Where a node reports."""
    return os.path.join(attempt, FOLDER, node + ".jsonl")


def task_file(attempt: str, node: str) -> str:
    """Where the judge asks a node to measure something."""
    return os.path.join(attempt, FOLDER, node + ".tasks")


class Reports:
    """What this node reports: a line for each group of results."""

    def __init__(self, attempt: str, node: str, master: str, port: int, part: str = "") -> None:
        self.own = {"node": node, "part": part} if part else {"node": node}
        self.attempt, self.node, self.master, self.port = attempt, node, master, port
        self.file: Optional[int] = None
        self.common: Dict[str, Any] = {}
        self.address = ""
        """The address from which this node reaches the first one."""
        self.ahead: Optional[float] = None
        self.tasks = 0

    @property
    def files(self) -> Dict[str, str]:
        """The files that this node must see, with their contents."""
        return dict(self.common.get("files", {}))

    @property
    def beat_s(self) -> float:
        """How often to say that this node is alive."""
        return max(BEAT_S, float(self.common.get("beat", 0.0)))

    def connect(self) -> List[Result]:
        """Find the node's file, and connect to the first node; returns what that shows."""
        self.open()
        if self.common:
            return self.reached()
        run = os.path.dirname(os.path.dirname(self.attempt))
        folder = result(False, "%s is not the folder of the first node" % run)
        return [*self.reached(), dict(folder, check="shared folder " + run)]

    def open(self) -> None:
        """Open the file that the judge has created. On a host with a copy of the run there is none."""
        folder, end = os.path.join(self.attempt, FOLDER), time.monotonic() + FILE_S
        while self.file is None and time.monotonic() < end:
            try:
                os.scandir(folder).close()  # makes the client of a file server look again
                if not self.common:
                    with open(os.path.join(folder, COMMON)) as common:
                        self.common = json.load(common)
                    end = min(end, time.monotonic() + COPY_S)
                self.file = os.open(report_file(self.attempt, self.node), os.O_WRONLY | os.O_APPEND)
            except (OSError, ValueError):
                time.sleep(0.1)

    def reached(self) -> List[Result]:
        """Connect to the first node at the port of the rendezvous, and send it some data."""
        place, end = "%s port %d" % (self.master, self.port), time.monotonic() + DEADLINE_S
        size = int(self.common.get("bytes", 0))
        while True:
            try:
                with connection(self.master, self.port, end) as peer:
                    self.address = str(peer.getsockname()[0])
                    seconds = self.transfer(peer, size, end)
            except (OSError, ValueError) as error:
                if isinstance(error, ConnectionResetError) and time.monotonic() < end - CONNECT_S:
                    time.sleep(0.2)  # the judge closes connections when it has too many
                    continue
                port = result(False, "cannot reach %s: %s" % (place, error))
                return [dict(port, check="rendezvous port"), dict(unknown("no connection"), check="network")]
            link = result(True, "%d KiB to %s in %.3f s" % (size // 1024, place, seconds), seconds)
            return [dict(result(True, place), check="rendezvous port"), dict(link, check="network")]

    def transfer(self, peer: socket.socket, size: int, end: float) -> float:
        """How long the judge takes to receive `size` bytes and to answer with its time. Raises OSError, ValueError."""
        began, sent = time.monotonic(), time.time()
        end = min(end, began + CONNECT_S)
        try:
            peer.settimeout(seconds_to(end))
            peer.sendall(b"\0" * size)
            peer.shutdown(socket.SHUT_WR)
            line = line_of(peer, end)
        except socket.timeout:
            raise OSError("%d KiB do not arrive within %d s" % (size // 1024, CONNECT_S)) from None
        if not line.startswith(ANSWER):
            raise OSError("what answers is not the node check")
        self.ahead = (sent + time.time()) / 2 - float(line[len(ANSWER) :])
        return time.monotonic() - began

    def send(self, **words: Any) -> None:
        """Report a line."""
        data = json.dumps(dict(self.own, **words)).encode() + b"\n"
        try:
            if self.file is not None:
                os.write(self.file, data)
                return
        except OSError:
            self.file = None
        print(data.decode(), end="", flush=True)

    def beat(self) -> None:
        """Tell the judge that this node is alive."""
        if self.file is not None:
            self.send()

    def task(self, place: Tuple[str, int]) -> Dict[str, Any]:
        """Say where this node waits for a task, and wait for it; empty when there are none left."""
        self.send(place=place)
        end = time.monotonic() + TASK_S
        while self.file is not None and time.monotonic() < end:
            try:
                with open(task_file(self.attempt, self.node)) as file:
                    lines = file.read().split("\n")[self.tasks : -1]
                if lines:
                    self.tasks += 1
                    task: Dict[str, Any] = json.loads(lines[0])
                    return task
            except (OSError, ValueError):
                return {}
            time.sleep(LOOK_S)
        return {}


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
    """A short line that the judge sends. Raises OSError."""
    line = b""
    while not line.endswith(b"\n"):
        peer.settimeout(seconds_to(end))
        data = peer.recv(256)
        if not data:
            raise ConnectionResetError("the connection was closed")
        line += data
        if len(line) > 256:
            raise OSError("the answer is too long")
    return line


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
