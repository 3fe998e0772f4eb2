"""The heartbeat of a job's nodes: the watcher of each one beats, and the first node names those that fall silent.

    python3 -I agent.pyz watch_node ATTEMPT_DIR STEP [HOST=BEAT...] HOST...

Runs beside the step (the process STEP), on the first node. Prints each silent host with its last heartbeat, HOST=BEAT,
and exits with 0; exits with 1 when the step has ended. A host that is given with its last heartbeat has been silent
long enough, unless it was heard since. Nodes that all fall silent at once are not lost: their file server does not
answer, or this program was held up. Nodes that are never heard, because they cannot write into the folder, are named on
stderr.

The heartbeat is a file that changes every few seconds while the node is well. A node that cannot write it, and that
cannot reach the first node either, is cut off: another node takes its place. It ends its own ranks, so that they cannot
write checkpoints when the network is back. A file server that stalls alone ends nothing: the first node still answers.

Beside it: a node's out-of-memory kills and network traffic, by /proc and sysfs, for watch.py.
"""

import contextlib
import glob
import os
import signal
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from hpc_launch.agent import say
from hpc_launch.agent.job_processes import below, send, text_of

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
        with contextlib.suppress(OSError), open(self.path, "w") as file:
            file.write("end\n")

    def beat(self) -> None:
        count = 0
        while not self.over:
            count += 1
            with contextlib.suppress(OSError):
                with open(self.path, "w") as file:
                    file.write("%d\n" % count)
                self.written = time.monotonic()
                if self.host in text_of(self.lost).split():  # it came back after it was given up
                    kill_step(self.top)
            time.sleep(BEAT_S)

    def fence(self) -> None:
        cut = 0
        while not self.over:
            late = time.monotonic() - self.written > FENCE_S
            cut = cut + 1 if late and not self.reachable() else 0
            if cut > 1:
                kill_step(self.top)
            time.sleep(0.5)

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
    # Opening it makes the client of a file server look again.
    return text_of(os.path.join(folder, "beat-%d" % node), 64).strip()


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
        text = "no heartbeat from %s, so only Slurm can notice their loss: is %s writable there?"
        say(text % (names, nodes.folder))


def oom_files(pid: int) -> List[str]:
    """The files in which the kernel counts OOM kills in a process's cgroup: v2, else v1, which counts a kill only in
    the group of the killed process."""
    for line in text_of("/proc/%d/cgroup" % pid).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            files = ["/sys/fs/cgroup" + path + "/memory.events"]
        elif "memory" in controllers.split(","):
            parts = [part for part in path.split("/") if part]
            files = [
                "/sys/fs/cgroup/memory/" + "/".join(parts[:n]) + "/memory.oom_control" for n in range(1, len(parts) + 1)
            ]
        else:
            continue
        if oom_kills(files) is not None:
            return files
    return []


def oom_kills(files: List[str]) -> Optional[int]:
    """The sum of the counts in these files; None if there are none, e.g. because the cgroup is gone."""
    counts = [
        int(word[1])
        for file in files
        for word in map(str.split, text_of(file).splitlines())
        if word[:1] == ["oom_kill"]
    ]
    return sum(counts) if counts else None


def oom_kills_of_host() -> Optional[int]:
    """The number of OOM kills on the node (Linux 4.13 and later)."""
    for line in text_of("/proc/vmstat").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None


def network_bytes() -> Dict[str, List[int]]:
    """{interface: [received, sent]}, including InfiniBand ports."""
    result = {}  # type: Dict[str, List[int]]
    for line in text_of("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if name.strip() != "lo" and len(fields) > 8:
            result[name.strip()] = [int(fields[0]), int(fields[8])]
    for port in glob.glob("/sys/class/infiniband/*/ports/*/counters"):
        words = [text_of(port + "/port_" + way + "_data").strip() for way in ("rcv", "xmit")]
        if all(word.isdigit() for word in words):
            result[port.split("/")[4] + ":" + port.split("/")[6]] = [
                4 * int(word) for word in words
            ]  # units of 4 bytes
    return result


class OomKills:
    """The kernel's counts of OOM kills: on the node since the start, in a rank's cgroup since it was found."""

    def __init__(self) -> None:
        self.before = {}  # type: Dict[int, Tuple[List[str], Optional[int]]]
        self.before_on_host = oom_kills_of_host()

    def note(self, rank: int, pid: int) -> None:
        """Remember the count of a new rank."""
        files = oom_files(pid)
        self.before[rank] = (files, oom_kills(files))

    def killed(self, rank: int) -> Optional[bool]:
        """Whether a rank that just ended was OOM-killed; None if unknown.

        An unchanged counter of the node proves that it was not; a changed one may stem from other processes, and then
        that of its cgroup decides, which counts the kills that no limit of the cgroup caused, too (cgroups.rst).
        """
        host = oom_kills_of_host()
        if host is not None and host == self.before_on_host:
            return False
        files, before = self.before.get(rank, ([], None))
        now = oom_kills(files)
        return None if now is None or before is None else now > before


class NetworkRates:
    """The network traffic since the last call."""

    def __init__(self) -> None:
        self.last = None  # type: Optional[Tuple[Dict[str, List[int]], float]]

    def sample(self) -> Optional[Dict[str, List[int]]]:
        """{interface: [received, sent]} in bytes per second; None at first."""
        now, net = time.time(), network_bytes()
        rates = None
        if self.last is not None:
            before, at = self.last
            rates = {
                name: [round((new - old) / (now - at)) for new, old in zip(both, before[name])]
                for name, both in net.items()
                if name in before
            }
        self.last = (net, now)
        return rates


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
