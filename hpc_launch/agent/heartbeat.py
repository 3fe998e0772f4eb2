"""The heartbeat of a job's nodes: the watcher of each one beats, and the first node names those that fall silent.

    python3 -I agent.pyz heartbeat ATTEMPT_DIR STEP [HOST=BEAT...] HOST...

Runs beside the step (the process STEP), on the first node. Prints each silent host with its last heartbeat, HOST=BEAT,
and exits with 0; exits with 1 when the step has ended. A host that is given with its last heartbeat has been silent
long enough, unless it was heard since. Nodes that all fall silent at once are not lost: their file server does not
answer, or this program was held up. Nodes that are never heard, because they cannot write into the folder, are named on
stderr.

The heartbeat is a file that changes every few seconds while the node is well. A node that cannot write it, and that
cannot reach the first node either, is cut off: another node takes its place. It ends its own ranks, so that they cannot
write checkpoints when the network is back. A file server that stalls alone ends nothing: the first node still answers.

Self-contained: standard library of Python 3.6 or later.
"""

import os
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from hpc_launch.agent.job_processes import below, send

BEAT_S = 4.0
FENCE_S = 10.0
"""After so long without a beat the node looks whether it is cut off. The first node waits longer, and the job's
script looks once more before other ranks start."""
CONNECT_S = 1.5


SILENT_S = 15.0
HEARD_S = 8.0
"""So recently another node must have been heard."""
LOOK_S = 2.0
NEVER_S = 60.0
"""A node that has not been heard by then has no heartbeat."""
HELD_UP_S = 6.0
"""A look that comes so late says nothing about the nodes: they get the whole time again."""


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


def beat(folder: str, node: int) -> str:
    """The content of a node's file; '' where there is none yet."""
    try:
        # Opening it makes the client of a file server look again.
        with open(os.path.join(folder, "beat-%d" % node)) as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""


class Nodes:
    """When each node was last heard."""

    def __init__(self, folder: str, count: int, before: Optional[Dict[int, str]] = None) -> None:
        self.folder, self.count = folder, count
        long_ago = time.monotonic() - SILENT_S
        self.heard: Dict[int, Tuple[str, float]] = {node: (text, long_ago) for node, text in (before or {}).items()}
        self.changed: Set[int] = set()
        """Those that were heard after the first look: it only shows what was written at some time before."""
        self.begun = False
        self.unheard = set(range(count))
        self.looked = time.monotonic()

    def silent(self) -> List[int]:
        """Look once. The nodes that are silent while another one is not."""
        for node in range(self.count):
            text = beat(self.folder, node)
            if text:
                self.unheard.discard(node)
            if text == "end":
                self.heard.pop(node, None)
            elif text and self.heard.get(node, ("", 0.0))[0] != text:
                if self.begun:
                    self.changed.add(node)
                self.heard[node] = text, time.monotonic()
        self.begun = True
        before, self.looked = self.looked, time.monotonic()
        if self.looked - before > HELD_UP_S:
            self.heard = {node: (text, self.looked) for node, (text, _) in self.heard.items()}
        ages = {node: self.looked - at for node, (_, at) in self.heard.items()}
        if not any(age < HEARD_S for node, age in ages.items() if node in self.changed):
            return []
        return sorted(node for node, age in ages.items() if age > SILENT_S)


def report(nodes: Nodes, hosts: List[str]) -> None:
    """Name the nodes that were never heard: only Slurm would notice their loss."""
    names = ", ".join(hosts[node] for node in sorted(nodes.unheard))
    if names:
        text = "no heartbeat from %s, so that only Slurm notices their loss: is %s writable there?"
        print(time.strftime("[hpc-launch %Y-%m-%d %H:%M:%S] ") + text % (names, nodes.folder), file=sys.stderr)


def main(words: List[str]) -> int:
    """Look until a node is silent or the step has ended."""
    attempt, step = words[:2]
    hosts = [word for word in words[2:] if "=" not in word]
    before = dict(word.split("=", 1) for word in words[2:] if "=" in word)
    place = {host: node for node, host in enumerate(hosts)}
    nodes = Nodes(os.path.join(attempt, "agent"), len(hosts), {place[host]: text for host, text in before.items()})
    report_at = time.monotonic() + NEVER_S
    while os.path.exists("/proc/" + step):
        silent = nodes.silent()
        if time.monotonic() > report_at:
            report(nodes, hosts)
            report_at = float("inf")
        if silent:
            print(" ".join("%s=%s" % (hosts[node], nodes.heard[node][0]) for node in silent))
            return 0
        time.sleep(LOOK_S)
    return 1
