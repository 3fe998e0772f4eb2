"""Choose the ports of the roles that begin on a node, and hold them until the job ends.

    python3 -I agent.pyz role_ports ATTEMPT_DIR HOST...   on each node of the job; without Slurm once, for all of them

The ports lie below the range from which the kernel takes ports for outgoing connections, so that no connection of any
program takes one (ip(7), ip_local_port_range). Other jobs of the same user do not choose them: each holds a lock on the
bytes with these numbers of one file in the node's memory, which the kernel gives up with the process (fcntl(2)). Other
users' programs are asked by binding each port.

At the end of the job it ends what the roles have left on the node.
"""

import fcntl
import json
import os
import random
import signal
import socket
import threading
import time
from typing import Any, Dict, List, Optional

from hpc_launch.agent import write_atomic
from hpc_launch.agent.job_processes import end_all, left_of

FOLDER = "/dev/shm"  # noqa: S108 - a file that only this user can open
FIRST = 10000
LAST = 32000
TRIES = 2000
RANDOM = random.SystemRandom()
"""Other users of the node may not know a port in advance: a program trusts what a server there sends."""
LOOK_S = 0.3
MOST_S = 25.0
"""So long may roles save after a SIGTERM for the whole job: Slurm kills after KillWait, 30 s by default."""
BIND = 64
"""So many ports of a block are bound to see whether they are free: all that have names, and the first of a range."""


def highest() -> int:
    """The last port that no outgoing connection gets."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return min(int(file.read().split()[0]) - 1, LAST)
    except (OSError, ValueError, IndexError):
        return LAST


def is_free(port: int) -> bool:
    """Whether nobody listens there, on any address."""
    for family, address in ((socket.AF_INET, ""), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as one:
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind((address, port))
        except OSError as error:
            if error.errno not in (97, 99):  # no such family or address here
                return False
    return True


class Ports:
    """The ports that this process holds on its node."""

    def __init__(self) -> None:
        name = "hpc-launch.ports.%d" % os.getuid()
        self.file = self.opened(os.path.join(FOLDER, name))
        if self.file is None:  # another user has taken the name: the home is not in memory, but the user's own
            self.file = self.opened(os.path.join(os.path.expanduser("~"), ".%s-%s" % (name, os.uname().nodename)))
        self.held: List[range] = []
        """A lock keeps out other processes only (fcntl(2))."""

    def opened(self, path: str) -> Optional[int]:
        """The file, if it is this user's."""
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError:
            return None
        if os.fstat(file).st_uid == os.getuid():
            return file
        os.close(file)
        return None

    def block(self, count: int) -> int:
        """The first of `count` ports in a row that are free, and now held. Raises OSError where there are none."""
        if self.file is None:
            raise OSError("cannot write to %s or to the home" % FOLDER)
        last = highest()
        first = FIRST if last - FIRST > 4 * count else 1024
        for _ in range(TRIES):
            start = RANDOM.randrange(first, last - count)
            if any(start < one.stop and one.start < start + count for one in self.held):
                continue
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, start)
            except OSError:
                continue
            if all(is_free(port) for port in range(start, start + min(count, BIND))):
                self.held.append(range(start, start + count))
                return start
            fcntl.lockf(self.file, fcntl.LOCK_UN, count, start)
        raise OSError("no %d free ports in a row between %d and %d" % (count, first, last))

    def choose(self, spec: Dict[str, Any]) -> Dict[str, Any]:
        """The ports of one role: its own, that of its rendezvous, those with names, and a range."""
        names = spec["ports"]
        start = self.block(2 + len(names) + spec["port_range"])
        named = {name: start + 2 + number for number, name in enumerate(names)}
        own = {"port": start, "master": start + 1, "named": named}
        return dict(own, range=start + 2 + len(names), ranged=spec["port_range"])


def left_here(folder: str) -> List[int]:
    """The processes of the roles on this node."""
    job = os.environ.get("SLURM_JOB_ID", "")
    return [pid for name in os.listdir(folder) for pid in left_of(os.path.join(folder, name), job)]


def main(words: List[str]) -> int:
    """Write which ports the roles of this node have, and wait for the end of the job."""
    over = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, lambda _number, _frame: over.set())
    attempt, hosts = words[0], words[1:]
    name, index = os.environ.get("SLURMD_NODENAME", ""), os.environ.get("HPC_LAUNCH_NODE", "")
    own = [hosts.index(name)] if name in hosts else [int(index)] if index else list(range(len(hosts)))
    folder = os.path.join(attempt, "roles")
    with open(os.path.join(folder, "plan.json")) as text:
        roles = json.load(text)["roles"]
    ports = Ports()
    for number in own:
        chosen: Dict[str, Any] = {}
        for spec in roles.values():
            for replica, (first, count) in enumerate(spec["nodes"]):
                if first == number or (spec["port_range"] and first < number < first + count):
                    chosen[spec["names"][replica]] = ports.choose(spec)
        write_atomic(os.path.join(folder, "ports-%d.json" % number), json.dumps(chosen))
    parent, end = os.getppid(), os.path.join(folder, "over")
    while not over.wait(LOOK_S) and not os.path.exists(end) and os.getppid() == parent:
        os.listdir(folder)  # the client of a file server looks again
    until = time.monotonic() + min(MOST_S, max(spec["grace"] for spec in roles.values()))
    # The roles end by themselves: Slurm has sent all processes of the job the signal that came here.
    while over.is_set() and time.monotonic() < until and not os.path.exists(end) and left_here(folder):
        time.sleep(LOOK_S)
    end_all(lambda: left_here(folder), kill_s=1.0)
    return 0
