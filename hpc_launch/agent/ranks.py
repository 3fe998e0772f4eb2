"""The ranks of a training on a node, by /proc: which processes they are, and what each does."""

import os
from typing import Dict, Optional, Sequence, Tuple

from hpc_launch.agent.job_processes import below, environment_of, is_starter, open_pidfd, stat_of, text_of

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


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


def find_ranks(pids: Sequence[int], known: "Dict[int, Rank]") -> "Dict[int, Rank]":
    """The topmost process of each rank among these, parents first, ignoring shells, container starters and this one."""
    ranks = dict(known)
    for pid in pids:
        if pid == os.getpid() or any(rank.pid == pid for rank in ranks.values()) or is_starter(pid):
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
