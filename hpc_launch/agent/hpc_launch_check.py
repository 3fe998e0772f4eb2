"""The node check on one node: what a training needs from it, measured before the training starts.

    python3 -I hpc_launch_check.py ATTEMPT_DIR NODE [EXPECTATION...]

Self-contained: standard library of Python 3.6 or later, copied into the run folder and run by the host's `python3` on
every node. Each check is a process of its own with a time limit (hpc_launch_check_run.py), so that a driver or a mount
that hangs cannot block the others. Each result goes at once to hpc_launch_judge.py on the first node, over the
connection that the training's rendezvous will use; a node that cannot connect prints its results, and srun passes them
on.

hpc_launch_check_host.py and hpc_launch_check_gpus.py hold the checks; the former describes their results.
"""

import argparse
import hmac
import json
import os
import shutil
import socket
import sys
import time
from functools import partial
from typing import Any, Dict, List, Optional, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python -I leaves it out

from hpc_launch_check_gpus import (
    CLEAR_S,
    COMPUTE_S,
    SMI_S,
    amd,
    compute,
    intel,
    kernel_log,
    nvidia,
    nvidia_links,
    nvidia_processes,
    nvidia_state,
)
from hpc_launch_check_host import (
    CHECK_S,
    SOFTWARE_S,
    Result,
    cpu_speed,
    host_name,
    infiniband,
    interface,
    memory,
    readable,
    result,
    shared,
    shared_memory,
    software,
    unknown,
    writable,
)
from hpc_launch_check_run import Check, Running

CONNECT_S = 4.0
KEY = "check-key"
"""A file that only the user can read: other users of the machine must not report for a node."""
LONGEST_HELLO = 1 << 20
Checks = Dict[str, Tuple[Check, float]]


def host_checks(args: argparse.Namespace) -> Checks:
    """What is checked on every node, with the time limit of each."""
    checks: Checks = {
        "memory": (memory, CHECK_S),
        "shm": (shared_memory, CHECK_S),
        "cpu": (cpu_speed, CHECK_S),
        "infiniband": (infiniband, CHECK_S),
        "host name": (partial(host_name, args.master, args.first), CHECK_S),
    }
    for name in filter(None, args.interfaces.split(":")):
        checks["interface " + name] = (partial(interface, name), CHECK_S)
    for path in args.path:
        checks["path " + path] = (partial(readable, path), CHECK_S)
    for path in sorted({os.path.normpath(os.path.expandvars(path)) for path in args.writable}):
        checks["writing to " + path] = (partial(writable, path, args.node), CHECK_S)
    if args.python:
        checks["software"] = (partial(software, args.python, args.script), SOFTWARE_S + 1)
    return checks


def gpu_checks(args: argparse.Namespace) -> Checks:
    """What is checked on a node with GPUs, with the time limit of each."""
    checks: Checks = {"kernel log": (kernel_log, CHECK_S + 1)}
    if args.gpu_vendor == "amd":
        checks["gpus"] = (partial(amd, args.gpus), CHECK_S)
    elif args.gpu_vendor == "intel":
        checks["gpus"] = (partial(intel, args.gpus), CHECK_S)
    elif shutil.which("nvidia-smi"):
        checks["gpus"] = (partial(nvidia, args.gpus, args.gpu_model), SMI_S + 1)
        checks["gpu state"] = (nvidia_state, 3 * SMI_S + 1)
        checks["gpu links"] = (partial(nvidia_links, args.gpus), SMI_S + 1)
        checks["gpu processes"] = (partial(nvidia_processes, args.gpus), CLEAR_S + 2 * SMI_S + 1)
    else:
        checks["gpus"] = (partial(unknown, "no nvidia-smi"), CHECK_S)
    if args.python:
        checks["gpu compute"] = (partial(compute, args.python, args.gpus), COMPUTE_S + 1)
    return checks


def folder_checks(files: Dict[str, str]) -> Checks:
    """Files that the first node wrote have to appear here."""
    folders = {path: os.path.dirname(path) for path in files}
    return {"shared folder " + folders[path]: (partial(shared, path, files[path]), CHECK_S) for path in files}


class Reports:
    """What this node sends to the judge: a line for each group of results, signed with the key of the run."""

    def __init__(self, attempt: str, node: str, master: str, port: int) -> None:
        self.node, self.place = node, "%s port %d" % (master, port)
        self.key_path = os.path.join(attempt, "agent", KEY)
        self.master, self.port = master, port
        self.lines: List[bytes] = []
        self.printed = 0
        self.key = self.nonce = b""
        self.peer: Optional[socket.socket] = None
        self.files: Dict[str, str] = {}
        self.ahead: Optional[float] = None

    def connect(self) -> List[Result]:
        """Connect to the judge; returns what that shows about the network."""
        port, link = result(True, self.place), unknown("no connection")
        try:
            self.peer = connection(self.master, self.port)
            sent = time.time()
            self.peer.sendall(b"hello\n")
            hello = json.loads(line_of(self.peer).decode())
            self.ahead = (sent + time.time()) / 2 - hello["time"]
            self.nonce, self.files = hello["nonce"].encode(), hello["files"]
            link = transfer(self.peer, hello["bytes"], self.place)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if self.peer is not None:
                self.peer.close()
            self.peer = None
            port = result(False, "cannot reach %s: %s" % (self.place, error))
        try:
            with open(self.key_path, "rb") as file:
                self.key = file.read()
        except OSError:  # not the folder of the first node
            self.peer = None
        return [dict(port, check="rendezvous port"), dict(link, check="network")]

    def send(self, **words: Any) -> None:
        """Send a line; without a connection, print all lines: srun writes them to the first node's check.log."""
        data = json.dumps(dict(words, node=self.node)).encode()
        self.lines.append(data)
        try:
            if self.peer is None:
                raise OSError("no connection")
            self.peer.sendall(hmac.new(self.key, self.nonce + data, "sha256").hexdigest().encode() + data + b"\n")
        except OSError:
            self.peer = None
            for line in self.lines[self.printed :]:
                print(line.decode(), flush=True)
            self.printed = len(self.lines)

    def close(self) -> None:
        """Wait until the judge has read everything."""
        if self.peer is not None:
            try:
                self.peer.shutdown(socket.SHUT_WR)
                self.peer.settimeout(CONNECT_S)
                self.peer.recv(1)
            except OSError:
                pass


def connection(master: str, port: int) -> socket.socket:
    """A connection to the judge. Raises OSError."""
    end = time.monotonic() + CONNECT_S
    while True:
        try:
            peer = socket.create_connection((master, port), timeout=CONNECT_S)
        except ConnectionRefusedError:  # the judge may not listen yet
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            peer.settimeout(CONNECT_S)
            return peer


def line_of(peer: socket.socket) -> bytes:
    """A line that the judge sends. Raises OSError."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LONGEST_HELLO:
        data = peer.recv(1 << 16)
        if not data:
            raise OSError("the connection was closed")
        line += data
    return line


def transfer(peer: socket.socket, size: int, place: str) -> Result:
    """How long the judge takes to receive `size` bytes: compared between nodes."""
    began = time.monotonic()
    try:
        peer.sendall(b"\0" * size)
        line_of(peer)
    except socket.timeout:  # what was sent still fills the connection, so that nothing can follow
        raise OSError("%d KiB do not arrive within %d s" % (size // 1024, CONNECT_S)) from None
    seconds = time.monotonic() - began
    return result(True, "%d KiB to %s in %.3f s" % (size // 1024, place, seconds), seconds)


def main() -> None:
    """Check this node and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt")
    parser.add_argument("node")
    parser.add_argument("--master", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--gpu-vendor", default="nvidia")
    parser.add_argument("--gpu-model", default="")
    parser.add_argument("--interfaces", default="")
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--writable", action="append", default=[])
    parser.add_argument("--python", default="")
    parser.add_argument("--script", default="")
    args = parser.parse_known_args()[0]  # some expectations are the judge's
    args.python, args.script = os.path.expandvars(args.python), os.path.expandvars(args.script)
    began = time.monotonic()
    reports, running = Reports(args.attempt, args.node, args.master, args.port), Running()
    checks = dict(host_checks(args), **(gpu_checks(args) if args.gpus else {}))
    running.start(checks)
    port = reports.connect()
    folders = folder_checks(reports.files)
    running.start(folders)
    # The names first: the judge knows what a node that freezes still owes.
    started = dict(result(True, sys.executable), check="start")
    reports.send(begun=[*checks, *folders], results=[started, *port], clock_ahead_s=reports.ahead)
    for found in running.results():
        reports.send(results=found)
    reports.send(done=True, seconds=round(time.monotonic() - began, 2))
    reports.close()


if __name__ == "__main__":
    main()
