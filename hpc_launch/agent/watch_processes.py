"""The processes of a node and the ranks among them, by /proc. For watch.py.

Self-contained: standard library of Python 3.6 or later.
"""

import ctypes
import glob
import os
from typing import Dict, List, Optional, Sequence, Set, Tuple

PIDFD_OPEN = 434  # the same number on every architecture (pidfd_open(2))
STARTERS = {
    *("bash", "sh", "dash", "ksh", "zsh", "busybox", "sed", "tee", "cat", "env", "time", "numactl"),
    *("apptainer", "singularity", "starter", "starter-suid", "ch-run", "shifter", "crun", "runc"),
}
"""Names (proc(5), comm) of shells and of what starts a container."""
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def text_of(path: str, limit: int = 1 << 16) -> str:
    """The first `limit` bytes of a file (-1: all of it); '' if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def stat_of(pid: int) -> List[str]:
    """The fields of /proc/PID/stat after the name (proc(5)): [0] is the state. Empty if the process is gone."""
    return text_of("/proc/%d/stat" % pid).rpartition(")")[2].split()


def below(pid: int) -> List[int]:
    """All descendants of `pid`, parents first."""
    descendants, pending = [], [pid]
    while pending:
        here = pending.pop(0)
        lists = glob.glob("/proc/%d/task/*/children" % here)
        children = [int(word) for path in lists for word in text_of(path).split()]
        descendants += children
        pending += children
    return descendants


def environment_of(pid: int) -> Dict[str, str]:
    """The initial environment of a process."""
    pairs = (item.partition("=") for item in text_of("/proc/%d/environ" % pid, -1).split("\0"))
    return {name: value for name, _, value in pairs}


def belonging(variables: Sequence[str], sessions: Set[str]) -> List[int]:
    """The other processes that began with all of these variables, `NAME=value`, whatever their parent. Adds their
    sessions to `sessions`.

    A process that sets its title may write over its environment (setproctitle): then it belongs to them if it is in one
    of the sessions, which may have lost their first process, or a child of one of them.
    """
    wanted = {os.fsencode(one) for one in variables}
    found = set()  # type: Set[int]
    untitled = {}  # type: Dict[int, List[str]]
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        fields = stat_of(pid)
        if len(fields) < 4 or fields[0] in "ZX" or pid == os.getpid():
            continue
        environment = environ_of(pid)
        if wanted.issubset(environment.split(b"\0")):
            found.add(pid)
            sessions.add(fields[3])
        elif not environment.strip(b"\0"):
            untitled[pid] = fields
    while True:
        more = [pid for pid, fields in untitled.items() if fields[3] in sessions or int(fields[1]) in found]
        if not more:
            return sorted(found)
        found.update(more)
        sessions.update(untitled.pop(pid)[3] for pid in more)


def environ_of(pid: int) -> bytes:
    """The initial environment of a process; empty if it is not readable."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return file.read()
    except OSError:
        return b""


def open_pidfd(pid: int) -> Optional[int]:
    """A descriptor that becomes readable when the process ends; None on kernels before 5.3."""
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        descriptor = ctypes.CDLL(None).syscall(PIDFD_OPEN, pid, 0)
    except (OSError, AttributeError):
        return None
    return descriptor if descriptor >= 0 else None


class Rank:
    """One training process on this node."""

    def __init__(self, pid: int, rank: int, start_time: str) -> None:
        self.pid, self.rank, self.start_time = pid, rank, start_time
        self.pidfd = open_pidfd(pid)

    def alive(self) -> bool:
        fields = stat_of(self.pid)
        return len(fields) > 19 and fields[19] == self.start_time and fields[0] not in "ZX"

    def exit_status(self) -> Tuple[Optional[int], Optional[int]]:
        """(exit code, signal), None if unknown: available only until the launcher reaps the process."""
        fields = stat_of(self.pid)
        if len(fields) < 50 or fields[19] != self.start_time or fields[0] != "Z":
            return None, None
        status = int(fields[49])
        return (None, status & 127) if status & 127 else (status >> 8, None)

    def cpu_s(self) -> float:
        fields = stat_of(self.pid)
        return sum(map(int, fields[11:15])) / TICKS if len(fields) > 14 else 0.0

    def place(self) -> str:
        """What the main thread does: `running`, the kernel function it waits in (proc(5), wchan), or its state."""
        fields = stat_of(self.pid)
        if not fields or fields[0] == "R":
            return "running"
        waits = text_of("/proc/%d/wchan" % self.pid).strip()
        return waits if waits not in ("", "0") else fields[0]

    def rss_mib(self) -> float:
        fields = stat_of(self.pid)
        return int(fields[21]) * PAGE_MIB if len(fields) > 21 else 0.0


def rank_of(pid: int) -> Optional[int]:
    """The rank that a process was started as or for; None if neither."""
    environment = environment_of(pid)
    word = environment.get("RANK", "")
    return int(word) if word.isdigit() and "LOCAL_RANK" in environment else None


def find_ranks(launcher: int, known: "Dict[int, Rank]") -> "Dict[int, Rank]":
    """The topmost process of each rank below the launcher, ignoring shells, container starters and the watcher."""
    ranks = dict(known)
    for pid in below(launcher):
        name = text_of("/proc/%d/comm" % pid).strip()
        if name in STARTERS or pid == os.getpid() or any(rank.pid == pid for rank in ranks.values()):
            continue
        number = rank_of(pid)
        if number is not None and (number not in ranks or not ranks[number].alive()):
            fields = stat_of(pid)
            if len(fields) > 19:
                ranks[number] = Rank(pid, number, fields[19])
    return ranks


def top_of_node(process: int) -> int:
    """The common ancestor of the node's ranks, if they were started separately and `process` is one of them."""
    wanted = environment_of(process).get("LOCAL_WORLD_SIZE", "")
    top = process
    for _ in range(4):
        above = stat_of(top)[1:2]
        if not above or int(above[0]) <= 1:
            break
        top = int(above[0])
        # Those that start ranks count: an image may take a while.
        if wanted.isdigit() and len({rank_of(pid) for pid in below(top)} - {None}) >= int(wanted):
            break
    return top


def send(pid: int, signal_number: int) -> None:
    """Send a signal to a process that may no longer exist."""
    try:
        os.kill(pid, signal_number)
    except OSError:
        pass
