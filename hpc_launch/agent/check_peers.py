"""Checks on hosts that are reached by ssh, for check.py: ports between the nodes, their own names, the same code, pdsh.

Standard library of Python 3.6 or later."""

import hashlib
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Dict, Iterator, List

from hpc_launch.agent.check_host import CHECK_S, Result, answer, result, text_of, unknown
from hpc_launch.agent.folders import LOCAL, file_system

PORTS = "ports between nodes"
"""The name of the check."""
FIRST, COUNT = 32768, 28232
"""The ports that the kernel chooses from (ip_local_port_range in ip(7))."""
NEIGHBOURS = 16
"""How many nodes before and after its own in the list a node connects to."""
REACH_S = 10.0
"""How long the others may take to listen: as long as they may take to start (LAG_S of check_reports.py)."""
TRY_S, TRIES = 3.0, 2
LISTEN_S = 20.0
PEERS_S = REACH_S + TRY_S * TRIES
"""The limit of the whole check."""


class Peers:
    """The other nodes, with the address of each, and the port at which this node listens."""

    def __init__(self, node: str, listed: List[str], port: int) -> None:
        pairs = [one.split("=", 1) for one in listed]
        names = [name for name, _ in pairs]
        at = names.index(node)
        around = [(at + step) % len(names) for step in range(-NEIGHBOURS, NEIGHBOURS + 1)]
        self.node, self.port = node, FIRST + port * 7919 % COUNT
        self.others: Dict[str, str] = {names[one]: pairs[one][1] for one in around if one != at}
        self.child = 0
        self.until = time.monotonic() + LISTEN_S
        server = listener(pairs[at][1], self.port)
        if server is not None:
            self.child = os.fork()
            if self.child == 0:
                try:
                    wait_for(set(self.others), server, self.until)
                finally:
                    os._exit(0)
            server.close()

    def reached(self) -> Result:
        """Connect to each of the others. The value says to whom that failed, and whether this node listened."""
        with ThreadPoolExecutor(max_workers=2 * NEIGHBOURS) as pool:
            said = pool.map(partial(connect, self.node, self.port), self.others.values())
            failed = {name: text for name, text in zip(self.others, said) if text}
        value = {"failed": failed, "listens": bool(self.child), "port": self.port, "count": len(self.others)}
        return result(True, "%d nodes at port %d" % (len(self.others) - len(failed), self.port), value)

    def end(self) -> None:
        """Wait until the others have come."""
        while self.child and time.monotonic() < self.until and os.waitpid(self.child, os.WNOHANG) == (0, 0):
            time.sleep(0.05)


def listener(address: str, port: int) -> "socket.socket | None":
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


def wait_for(names: "set[str]", server: socket.socket, end: float) -> None:
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
    end, tries = time.monotonic() + REACH_S, 0
    while True:
        try:
            with socket.create_connection((address, port), timeout=TRY_S) as peer:
                peer.sendall(node.encode() + b"\n")
            return ""
        except socket.timeout:
            tries += 1
            if tries == TRIES:
                return "timed out"
        except OSError as error:
            if not isinstance(error, ConnectionRefusedError) or time.monotonic() > end:
                return str(error.strerror or error)
            time.sleep(0.3)  # it may not listen yet


def own_name(gpus: int) -> Result:
    """Whether the node's own name leads to it for others, too: Gloo listens at the address of this name.

    NCCL does not, so that it is no fault on nodes with GPUs.
    """
    name = socket.gethostname()
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return result(True, "GLOO_SOCKET_IFNAME is set")
    try:
        found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)})
    except OSError as error:
        return unknown("%s has no address: %s" % (name, error))
    if not all(address.startswith("127.") for address in found):
        return result(True, "%s is %s" % (name, ", ".join(found)))
    text = "its own name %s resolves to %s in /etc/hosts, where Gloo would listen" % (name, ", ".join(found))
    return result(None if gpus else False, text, "note" if gpus else None)


SUFFIXES = tuple(".py .pyx .c .cc .cpp .cu .cuh .h .hpp .sh .yaml .yml .toml".split())
MOST_FILES, MOST_BYTES, LARGE = 4000, 32 << 20, 1 << 20
"""How many files and bytes are read; of a file that is larger than LARGE, the size counts."""
CODE_S = 3.0
MOST_DIGESTS = 500
"""Up to so many files, each is compared; beyond, each folder."""


def code(folder: str, runs: str) -> Result:
    """A digest of each source file, or of each folder, whose name ends with `/`. `runs` is left out."""
    if file_system(folder) not in LOCAL:
        return result(True, "%s is shared" % folder)
    end, size = time.monotonic() + CODE_S, 0
    digests: Dict[str, str] = {}
    for path in sources(folder, runs):
        if len(digests) >= MOST_FILES or size > MOST_BYTES or time.monotonic() > end:
            return unknown("%s has more than %d files, or is slow to read" % (folder, len(digests)))
        try:
            length = os.path.getsize(path)
            data = b"%d bytes" % length
            if length <= LARGE:
                with open(path, "rb") as file:
                    data = file.read(LARGE)
        except OSError as error:
            data = str(error.strerror).encode()
        size += len(data)
        digests[os.path.relpath(path, folder)] = hashlib.sha256(data).hexdigest()[:8]
    count = len(digests)
    digests = by_folder(digests) if count > MOST_DIGESTS else digests
    if len(digests) > MOST_DIGESTS:
        return unknown("%s has too many folders to compare" % folder)
    return result(True, "%d files in %s" % (count, folder), {"code": digests})


def sources(folder: str, runs: str) -> Iterator[str]:
    """The source files in a fixed order, without what is hidden, installed, or written by runs."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and os.path.join(place, name) != runs
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        )
        for name in sorted(files):
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield os.path.join(place, name)


def by_folder(digests: Dict[str, str]) -> Dict[str, str]:
    """A digest for each folder."""
    texts: Dict[str, str] = {}
    for path in sorted(digests):
        folder = os.path.dirname(path) + "/"
        texts[folder] = "%s%s %s\n" % (texts.get(folder, ""), path, digests[path])
    return {name: hashlib.sha256(os.fsencode(text)).hexdigest()[:8] for name, text in texts.items()}


RCMD_DEFAULT = "/etc/pdsh/rcmd_default"
"""The site's choice, if PDSH_RCMD_TYPE is not set (pdsh(1))."""


def pdsh(first: bool, kind: str) -> Result:
    """What pdsh uses on the first node, or by `kind` what the launcher lets it use."""
    if not first:
        return result(True, "only the first node starts others")
    try:
        _, text = answer(["pdsh", "-V"], CHECK_S)
    except OSError:
        return result(False, "no pdsh: install it, or use another launcher")
    found = re.search(r"rcmd modules: (\S+) \(default: (\S+)\)", text)
    modules, default = (found.group(1).split(","), found.group(2)) if found else ([], "")
    if modules and "ssh" not in modules:
        return result(False, "pdsh has no module for ssh: install it (pdsh-rcmd-ssh)")
    kind = kind or os.environ.get("PDSH_RCMD_TYPE", "") or text_of(RCMD_DEFAULT).strip() or default
    if kind and kind != "ssh":
        return result(False, "pdsh uses %s: set `env: {PDSH_RCMD_TYPE: ssh}`" % kind)
    return result(True, "pdsh uses ssh")
