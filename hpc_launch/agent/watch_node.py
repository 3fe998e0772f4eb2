"""A node's memory, out-of-memory kills and network traffic, by /proc and sysfs. For watch.py.

Self-contained: standard library of Python 3.6 or later.
"""

import glob
import time
from typing import Dict, List, Optional, Tuple

from hpc_launch.agent.job_processes import text_of


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


def memory_mib() -> Tuple[int, int]:
    """(available, total) memory of the node."""
    rows = dict(line.split(":", 1) for line in text_of("/proc/meminfo").splitlines() if ":" in line)
    available, whole = (int(rows.get(key, "0 kB").split()[0]) // 1024 for key in ("MemAvailable", "MemTotal"))
    return available, whole


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

        An unchanged counter of the node proves that it was not; a changed one may stem from other processes.
        """
        host = oom_kills_of_host()
        if host is not None and host == self.before_on_host:
            return False
        files, before = self.before.get(rank, ([], None))
        now = oom_kills(files)
        if now is not None and before is not None and now > before:
            return True
        return None if host is not None or now is None or before is None else False


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
