"""Measure what a cluster's nodes offer a training, with one process on each node of a small job.

    agent.pyz smoke FOLDER [--folder NAME=PATH]... [--reach HOST:PORT]... [--python PATH]

Started by `hpc-launch sites learn --smoke` through the job's own step, which sets RANK, WORLD_SIZE and MASTER_ADDR.
FOLDER must be on shared storage: the first process writes its address there, and each process writes `rank-N.json`:
what describe_host.py says, and what the processes found out together. Exits with 0 if they reached each other.
"""

import argparse
import json
import os
import socket
import threading
from typing import Any, Dict, List, Optional, Tuple

from hpc_launch.agent import measure, write_atomic
from hpc_launch.agent.check_host import appears
from hpc_launch.agent.describe_host import describe, interface_of, interfaces, probe, side_by_side, text

REACH_S = 4.0
TORCH_S = 120.0
WAIT_S = 60.0
"""Seconds that the processes wait for each other: one may start later on a cold file system."""


def main(words: List[str]) -> int:
    """Measure, write the record, and return 0 if the processes reached each other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--folder", action="append", default=[])
    parser.add_argument("--reach", action="append", default=[])
    parser.add_argument("--python", default="")
    args = parser.parse_args(words)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    record = describe(args.python)
    record["allocated_gpus"] = os.environ.get("SLURM_GPUS_ON_NODE")
    record["internet"] = internet(args.reach)
    together = Together(args.out, rank, size)
    try:
        together.measure(dict(item.split("=", 1) for item in args.folder), use_gpus=bool(record.get("gpus")))
    except Exception as error:  # nodes can fail in any way
        together.faults.append("together: %s: %s" % (type(error).__name__, error))
    record["together"] = together.result
    record["faults"] += map(text, together.faults)
    line = json.dumps(record, sort_keys=True)
    write_atomic(os.path.join(args.out, "rank-%d.json" % rank), line, mode=0o600, sync=False)
    print(line, flush=True)
    return 0 if size == 1 or together.result["connected"] else 1


def internet(targets: List[str]) -> Optional[Dict[str, Any]]:
    """How one of the targets is reachable: `direct`, `none`, or `proxy` with an address that has no password."""
    if any(side_by_side(lambda target: connect(target).close(), targets, REACH_S).values()):
        return {"compute": "direct"}
    proxy = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY") or ""
    if proxy and any(side_by_side(lambda target: through(proxy, target), targets, REACH_S).values()):
        return {"compute": "proxy", "needs_password": True} if "@" in proxy else {"compute": "proxy", "proxy": proxy}
    return {"compute": "none"} if targets else None


def connect(target: str) -> socket.socket:
    """Connect to HOST:PORT. Raises OSError and ValueError."""
    host, _, port = target.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=REACH_S)


def through(proxy: str, target: str) -> None:
    """Let an HTTP proxy connect to the target. Raises OSError and ValueError."""
    place = proxy.rpartition("//")[2].rstrip("/").rpartition("@")[2]
    with connect(place if ":" in place else place + ":3128") as one:
        one.sendall(("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, target)).encode())
        if b" 200" not in one.recv(64):
            raise OSError("refused")


class Together:
    """What the processes find out together: the interface between them, shared folders, and a sum with PyTorch."""

    def __init__(self, out: str, rank: int, size: int) -> None:
        self.out, self.rank, self.size = out, rank, size
        self.faults: List[str] = []
        self.result: Dict[str, Any] = {"connected": False}

    def measure(self, folders: Dict[str, str], *, use_gpus: bool) -> None:
        """Meet, and measure. Raises OSError if the processes do not find each other."""
        if self.rank > 0:
            meeting = json.loads(awaited(os.path.join(self.out, "meeting.json")))
            master, own = self.reach_first(meeting)
            seen = probe("read", meeting["token"], list(meeting["folders"].values()))
            self.result["folders"] = {name: seen[path] for name, path in meeting["folders"].items()}
            write_atomic(os.path.join(self.out, "met-%d" % self.rank), master, mode=0o600)
            self.sum_with_torch(master, own, meeting["torch_port"], use_gpus=use_gpus)
            return
        token = os.urandom(16).hex()
        written = probe("write", token, list(folders.values()))
        shared = {name: path for name, path in folders.items() if written[path]}
        self.result["folders"] = dict.fromkeys(shared, True)
        try:
            with socket.socket() as server, socket.socket() as later:
                server.bind(("", 0))
                server.listen(self.size + 64)
                threading.Thread(target=answer, args=(server, token), daemon=True).start()
                later.bind(("", 0))
                port, torch_port = server.getsockname()[1], later.getsockname()[1]
                addresses = [one["address"] for one in interfaces()]
                meeting = {"port": port, "torch_port": torch_port, "addresses": addresses, "token": token}
                text = json.dumps(dict(meeting, folders=shared))
                write_atomic(os.path.join(self.out, "meeting.json"), text, mode=0o600)
                later.close()
                reached = [awaited(os.path.join(self.out, "met-%d" % rank)) for rank in range(1, self.size)]
        finally:
            probe("remove", token, list(folders.values()))
        if reached:
            self.result.update(connected=True, interface=interface_of(reached[0]))
            self.sum_with_torch(reached[0], reached[0], torch_port, use_gpus=use_gpus)

    def reach_first(self, meeting: Dict[str, Any]) -> Tuple[str, str]:
        """The address at which the first process answers, and this node's own. Raises OSError if there is none."""
        name = os.environ.get("MASTER_ADDR", "")
        for address in [name] + meeting["addresses"]:
            try:
                with connect("%s:%d" % (address, meeting["port"])) as peer:
                    if peer.recv(64).decode("ascii", "replace") != meeting["token"]:
                        raise OSError("another program answers")
                    master, own = peer.getpeername()[0], peer.getsockname()[0]
            except OSError as error:
                self.faults.append("connect %s: %s" % (address, error))
                continue
            by = "name" if address == name else "address"
            self.result.update(connected=True, by=by, interface=interface_of(own))
            return master, own
        raise OSError("cannot connect to the first node")

    def sum_with_torch(self, master: str, own: str, port: int, *, use_gpus: bool) -> None:
        """The bandwidth of all-reduce with the backend that a training would use; nothing without PyTorch."""
        import importlib.util

        if importlib.util.find_spec("torch") is None:
            return
        request = {"task": "all-reduce", "processes": 1, "world": self.size, "first": self.rank}
        request.update(address=master, own=own, port=port, limit=TORCH_S)
        found = measure.run(dict(request, gpus=use_gpus))[0]
        if found.get("unavailable"):  # the job did not ask for the node's GPUs
            found = measure.run(dict(request, gpus=False))[0]
        self.result["all_reduce"] = found.get("all_reduce")
        if "all_reduce" not in found:
            self.faults.append("PyTorch: %s" % found.get("error", "no answer within %d s" % TORCH_S))


def answer(server: socket.socket, token: str) -> None:
    """Send the token to whoever connects, which shows the others that they have reached this process."""
    while True:
        try:
            with server.accept()[0] as peer:
                peer.sendall(token.encode())
        except OSError:
            if server.fileno() < 0:
                return


def awaited(path: str) -> str:
    """The text of a file that another process writes. Raises OSError if it does not appear."""
    appears(path, WAIT_S)
    with open(path) as stream:
        return stream.read()
