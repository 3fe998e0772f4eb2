"""The heartbeat of one node, for watch.py: a file that changes every few seconds while the node is well.

A node that cannot write it, and that cannot reach the first node either, is cut off: another node takes its place. It
ends its own ranks, so that they cannot write checkpoints when the network is back. A file server that stalls alone ends
nothing: the first node still answers.

Self-contained: standard library of Python 3.6 or later.
"""

import os
import signal
import socket
import threading
import time
from typing import Any, Callable, List, Optional, Tuple

from hpc_launch.agent.watch_processes import below, send

BEAT_S = 4.0
FENCE_S = 10.0
"""After so long without a beat the node looks whether it is cut off. silence.py waits longer, and the job's
script looks once more before other ranks start."""
CONNECT_S = 1.5


class Heartbeat:
    """Two threads: either may be held up by a file server that does not answer, and so may the watcher itself."""

    def __init__(self, folder: str, node: int, top: int) -> None:
        self.path, self.node, self.top = os.path.join(folder, "beat-%d" % node), node, top
        self.lost, self.host = os.path.join(folder, "lost"), os.environ.get("SLURMD_NODENAME", "")
        self.written = time.monotonic()
        self.over = False
        self.first = resolved(os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", ""))

    def start(self) -> None:
        """Begin, and go on until the watcher ends."""
        targets: List[Callable[[], None]] = [self.beat]
        if self.node and self.first:
            targets.append(self.fence)
        for target in targets:
            threading.Thread(target=target, daemon=True).start()

    def end(self) -> None:
        """The last beat: silence after it is no loss."""
        self.over = True
        try:
            with open(self.path, "w") as file:
                file.write("end\n")
        except OSError:
            pass

    def beat(self) -> None:
        count = 0
        while not self.over:
            count += 1
            try:
                with open(self.path, "w") as file:
                    file.write("%d\n" % count)
                self.written = time.monotonic()
                self.look_whether_lost()
            except OSError:
                pass
            time.sleep(BEAT_S)

    def fence(self) -> None:
        cut = 0
        while not self.over:
            late = time.monotonic() - self.written > FENCE_S
            cut = cut + 1 if late and not self.reachable() else 0
            if cut > 1:
                self.kill()
            time.sleep(0.5)

    def look_whether_lost(self) -> None:
        """End the ranks of a node that came back after it was given up."""
        try:
            with open(self.lost) as file:
                if self.host in file.read(1 << 16).split():
                    self.kill()
        except OSError:
            pass

    def kill(self) -> None:
        """End the ranks of this node."""
        kill_step(self.top)

    def reachable(self) -> bool:
        """Whether the first node answers, even with a refusal."""
        try:
            with socket.socket(self.first[0]) as probe:  # type: ignore[index]
                probe.settimeout(CONNECT_S)
                probe.connect(self.first[1])  # type: ignore[index]
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True


def kill_step(top: int) -> None:
    """End all processes of the step on this node. Reads nothing but /proc: the file server may not answer."""
    for pid in [*below(top), top]:
        if pid != os.getpid():
            send(pid, signal.SIGKILL)


def resolved(host: str, port: str) -> Optional[Tuple[int, Any]]:
    """Family and address of the first node; None if its name has no address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    except (OSError, ValueError):
        return None
    return family, address
