"""The node check on hosts that are reached by ssh: it starts there, and checks what Slurm's nodes have in common.

    python3 -I agent.pyz check_ssh ATTEMPT_FOLDER LOG HOST...

Runs ATTEMPT_FOLDER/check.sh on the hosts at the same time, in the place of srun, and appends the reports that they
print to LOG. A host that cannot be reached, or cannot start the check, gets a report that says why. On SIGTERM, the
hosts end their checks.

For check.py: ports between the nodes, the same code.
"""

import json
import os
import socket
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Dict, Iterator, List, Optional, Set

from hpc_launch.agent import program
from hpc_launch.agent.check_compare import PORTS
from hpc_launch.agent.check_host import Result, result, unknown
from hpc_launch.agent.fan_out import SSH, Connection, FanOut, last_line, shown, where_shared
from hpc_launch.agent.folders import LOCAL, code_paths, file_system

NO_PROGRAM = 127


class Checks(FanOut):
    """The checks of all hosts."""

    # Less than what the judge waits for the last hosts. ssh takes the first value of an option.
    ssh = ("ssh", "-oConnectTimeout=8", *SSH[1:])

    def __init__(self, folder: str, log: str, hosts: List[str]) -> None:
        super().__init__(folder, hosts)
        self.log = open(log, "ab", buffering=0)
        self.reported: Set[str] = set()

    def line(self, node: int) -> str:
        script = os.path.join(self.folder, "check.sh")
        return where_shared(script, ["python3", *program("on_host"), "bash", script, str(node)])

    def on_output(self, connection: Connection) -> None:
        """Keep the reports of this host among the lines that are complete."""
        if not connection.started or connection.too_long:
            return
        *lines, connection.output = connection.output.split(b"\n")
        for line in lines:
            if line.startswith(b"{") and node_of(line) == connection.host:
                self.reported.add(connection.host)
                self.log.write(line + b"\n")

    def on_end(self, connection: Connection) -> None:
        """Report for a host that cannot."""
        for line in connection.messages.splitlines():
            self.log.write(("%s: %s\n" % (connection.host, shown(line))).encode())
        code = connection.code or 0
        if self.end_at is not None or code == 0 or connection.host in self.reported:
            return
        text = last_line(connection.messages) or "the shell that came over ssh ended with code %d" % code
        if code == NO_PROGRAM and "python3" in text:
            text = "no python3"
        results = [{"check": "start", "ok": False, "text": text}]
        self.log.write(json.dumps({"node": connection.host, "done": True, "results": results}).encode() + b"\n")


def node_of(line: bytes) -> Optional[str]:
    """The node that a report is about."""
    try:
        return str(json.loads(line.decode())["node"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


FIRST, COUNT = 32768, 28232
"""The ports that the kernel chooses from (ip_local_port_range in ip(7))."""
NEIGHBOURS = 16
"""How many nodes before and after its own in the list a node connects to."""
REACH_S = 10.0
"""How long the others may take to listen: as long as they may take to start (START_S of judge.py)."""
TRY_S, LISTEN_S = 6.0, 20.0


def ports_between(node: str, listed: List[str], port: int) -> Iterator[List[Result]]:
    """Connect to each of the other nodes, `NAME=ADDRESS`, and listen until they have come.

    `port` is that of the rendezvous; another one follows from it. The result comes as soon as it is known: its value
    says to whom the connection failed, and whether this node listened.
    """
    pairs = [one.split("=", 1) for one in listed]
    names = [name for name, _ in pairs]
    at, port = names.index(node), FIRST + port * 7919 % COUNT
    around = [(at + step) % len(names) for step in range(-NEIGHBOURS, NEIGHBOURS + 1)]
    others = {names[one]: pairs[one][1] for one in around if one != at}
    server = listener(pairs[at][1], port)
    with ThreadPoolExecutor(max_workers=2 * NEIGHBOURS + 1) as pool:
        if server is not None:
            pool.submit(wait_for, set(others), server, time.monotonic() + LISTEN_S)
        said = pool.map(partial(connect, node, port), others.values())
        failed = {name: text for name, text in zip(others, said) if text}
        value = {"failed": failed, "listens": server is not None, "port": port, "count": len(others)}
        text = "%d nodes at port %d" % (len(others) - len(failed), port)
        yield [dict(result(True, text, value), check=PORTS)]


def listener(address: str, port: int) -> Optional[socket.socket]:
    """A socket at the node's own address, or at all of them; None if the port is in use. A name may be wrong here."""
    for place in (address, "") if address.replace(".", "").isdigit() else ("",):
        server = socket.socket()
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((place, port))
            server.listen(4 * NEIGHBOURS)
            return server
        except OSError:
            server.close()
    return None


def wait_for(names: Set[str], server: socket.socket, end: float) -> None:
    """Accept connections until each of these nodes has come."""
    while names and time.monotonic() < end:
        server.settimeout(max(0.01, end - time.monotonic()))
        try:
            peer = server.accept()[0]
            peer.settimeout(1.0)
            names.discard(peer.recv(256).decode("utf-8", "replace").strip())
            peer.close()
        except OSError:
            continue


def connect(node: str, port: int, address: str) -> str:
    """Why a connection fails; '' if it does not."""
    end = time.monotonic() + REACH_S
    while True:
        try:
            with socket.create_connection((address, port), timeout=TRY_S) as peer:
                peer.sendall(node.encode() + b"\n")
            return ""
        except OSError as error:
            if not isinstance(error, ConnectionRefusedError) or time.monotonic() > end:
                return str(error.strerror or error)
            time.sleep(0.05)  # it may not listen yet


SUFFIXES = tuple(".py .pyx .c .cc .cpp .cu .cuh .h .hpp .sh .yaml .yml .toml".split())
INSTALLED = (".*", "venv", "env", "site-packages", "node_modules")
"""Names of folders that hold no code of the training."""
MOST_FILES, MOST_BYTES, LARGE = 4000, 32 << 20, 1 << 20
"""How many files and bytes are read, and how much of a file."""
CODE_S = 3.0


def code(folder: str, runs: str) -> Result:
    """A digest of each source file. `runs` is left out."""
    if file_system(folder) not in LOCAL:
        return result(True, "%s is shared" % folder)
    end, size = time.monotonic() + CODE_S, 0
    digests: Dict[str, str] = {}
    for name in code_paths(folder, "", INSTALLED, {os.path.realpath(runs)}):
        if len(digests) >= MOST_FILES or size > MOST_BYTES or time.monotonic() > end:
            return unknown("%s has more than %d files, or is slow to read" % (folder, len(digests)))
        if not name.endswith(SUFFIXES):
            continue
        try:
            with open(os.path.join(folder, name), "rb") as file:
                data = file.read(LARGE)
        except OSError:
            data = b"unreadable"
        size += len(data)
        digests[name] = "%08x" % zlib.crc32(data)
    return result(True, "%d files in %s" % (len(digests), folder), digests)


def main(words: List[str]) -> None:
    """Check the hosts."""
    Checks(words[0], words[1], words[2:]).run()
