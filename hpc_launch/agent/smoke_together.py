"""Measurements across nodes for smoke.py: host names, shared folders, sums over TCP and with PyTorch.

The first process writes its address to a shared folder, where the others find it. Standard library of Python 3.6 or
later.
"""

import array
import datetime as dt
import hmac
import json
import os
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from hpc_launch.agent.describe_host import interfaces
from hpc_launch.agent.folders import new_file

TORCH_S = 120.0
WAIT_S = 60.0
"""Seconds that the other processes wait for the first one, which may start later on a cold file system."""
GREETING_S = 2.0
"""Seconds that a process has to send the key. Another user may connect to the port, too."""
COUNT = 1 << 18
"""Numbers to sum: 2 MiB, enough to show in an interface's counters."""
Record = Dict[str, Any]


def tried(record: Record, what: str, measure: Callable[[], Any]) -> Any:
    """The measured value; None if the measurement failed, with the error recorded under `faults`."""
    try:
        return measure()
    except Exception as error:  # nodes can fail in any way
        record["faults"].append("%s: %s: %s" % (what, type(error).__name__, error))
        return None


def together(out: str, folders: Dict[str, str], rank: int, size: int, record: Record) -> Dict[str, Any]:
    """Measurements across nodes: host names, the interface between them, shared folders, sums."""
    write(os.path.join(out, "host-%d" % rank), record["host"])
    if rank > 0:
        return other(out, rank, size, record)
    probes = leave_probes(folders)
    try:
        return first(out, size, record, probes)
    finally:
        for path in probes.values():
            os.unlink(path)


def leave_probes(folders: Dict[str, str]) -> Dict[str, str]:
    """Write a file to each folder that the other nodes have to see."""
    probes = {}
    for name, folder in folders.items():
        path = os.path.join(folder, ".hpc-launch-probe-" + os.urandom(16).hex())  # nobody can create it in advance
        try:
            with new_file(path) as stream:
                stream.write(name)
            probes[name] = path
        except OSError:
            continue
    return probes


def first(out: str, size: int, record: Record, probes: Dict[str, str]) -> Dict[str, Any]:
    """The measurements of the first process, to which the others connect."""
    key = os.urandom(32).hex()
    with socket.socket() as server, socket.socket() as later:
        server.bind(("", 0))
        server.listen(size + 64)
        later.bind(("", 0))
        torch_port = later.getsockname()[1]
        addresses = [one["address"] for one in interfaces()]
        meeting = {"port": server.getsockname()[1], "torch_port": torch_port, "addresses": addresses, "probes": probes}
        write(os.path.join(out, "meeting.json"), json.dumps(dict(meeting, key=key)))
        later.close()
        peers = accepted(server, key.encode(), size - 1)
    result = {"by": "name", "folders": dict.fromkeys(probes, True), "names": resolved(out, size)}  # type: Dict[str, Any]
    if peers:
        measured(result, peers[0], lambda: sum_first(peers, size))
    result["torch"] = torch_sum(torch_port, record) if size > 1 else None
    for peer in peers:  # the probes stay until all have looked
        exactly(peer, 1)
        peer.close()
    return result


def accepted(server: socket.socket, key: bytes, count: int) -> List[socket.socket]:
    """The connections of the other processes: those that send the key, which only this user can read.

    Strangers can connect, too: none of them keeps the others waiting. Raises OSError when the time is over.
    """
    peers: List[socket.socket] = []

    def greet(peer: socket.socket) -> None:
        try:
            peer.settimeout(GREETING_S)
            if hmac.compare_digest(exactly(peer, len(key)), key):
                peer.settimeout(WAIT_S)
                peers.append(peer)
                return
        except OSError:
            pass
        peer.close()

    end = time.monotonic() + WAIT_S
    server.settimeout(0.2)
    while len(peers) < count:
        if time.monotonic() > end:
            raise OSError("%d of %d other processes did not connect" % (count - len(peers), count))
        try:
            threading.Thread(target=greet, args=(server.accept()[0],), daemon=True).start()
        except socket.timeout:
            pass
    return peers


def other(out: str, rank: int, size: int, record: Record) -> Dict[str, Any]:
    """The measurements of every other process."""
    meeting = json.loads(awaited(os.path.join(out, "meeting.json")))
    master = os.environ.get("MASTER_ADDR", "")
    peer = None
    for address in [master] + meeting["addresses"]:
        try:
            peer = socket.create_connection((address, meeting["port"]), timeout=10)
            break
        except OSError as error:
            record["faults"].append("connect %s: %s" % (address, error))
    if peer is None:
        raise OSError("cannot connect to the first node")
    result = {"by": "name" if address == master else "address", "folders": {}}  # type: Dict[str, Any]
    with peer:
        peer.settimeout(WAIT_S)
        peer.sendall(meeting["key"].encode())
        result["names"] = resolved(out, size)
        for name, path in meeting["probes"].items():
            os.listdir(os.path.dirname(path))  # makes a network file system refresh its cache
            result["folders"][name] = os.path.exists(path)
        measured(result, peer, lambda: sum_other(peer, rank, size))
        result["torch"] = torch_sum(meeting["torch_port"], record)
        peer.sendall(b".")
    return result


def resolved(out: str, size: int) -> Dict[str, List[str]]:
    """The addresses of each host name as resolved here; empty if unknown."""
    result = {}
    for host in [awaited(os.path.join(out, "host-%d" % rank)) for rank in range(size)]:
        try:
            result[host] = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None)})
        except OSError:
            result[host] = []
    return result


def measured(result: Dict[str, Any], peer: socket.socket, sums: Callable[[], bool]) -> None:
    """Sum over all processes, and record the interface that carried the data."""
    mine = peer.getsockname()[0]
    by_address = {one["address"]: one["name"] for one in interfaces()}
    name = result["interface"] = "lo" if mine.startswith("127.") else by_address.get(mine)
    before, begin = bytes_of(name), time.time()
    result["sum_is_right"] = sums()
    result["seconds"] = round(time.time() - begin, 4)
    result["bytes"] = bytes_of(name) - before if name else None


def bytes_of(name: Optional[str]) -> int:
    """Bytes sent and received by an interface, in this process's network namespace."""
    with open("/proc/net/dev") as stream:
        rows = {row.partition(":")[0].strip(): row.partition(":")[2].split() for row in stream if ":" in row}
    numbers = rows.get(name or "", ["0"] * 9)
    return int(numbers[0]) + int(numbers[8])


def sum_first(peers: List[socket.socket], size: int) -> bool:
    """Add what the others send, and send them the sums."""
    total = array.array("d", [1.0]) * COUNT
    for peer in peers:
        theirs = array.array("d")
        theirs.frombytes(exactly(peer, 8 * COUNT))
        total = array.array("d", map(sum, zip(total, theirs)))
    for peer in peers:
        peer.sendall(total.tobytes())
    return total[0] == total[-1] == size * (size + 1) / 2


def sum_other(peer: socket.socket, rank: int, size: int) -> bool:
    """Send numbers to the first process, and receive the sums."""
    peer.sendall((array.array("d", [rank + 1.0]) * COUNT).tobytes())
    total = array.array("d")
    total.frombytes(exactly(peer, 8 * COUNT))
    return total[0] == total[-1] == size * (size + 1) / 2


def exactly(peer: socket.socket, count: int) -> bytes:
    """Receive so many bytes. Raises OSError if the peer is gone."""
    data = bytearray()
    while len(data) < count:
        part = peer.recv(min(count - len(data), 1 << 20))
        if not part:
            raise OSError("the peer closed the connection")
        data += part
    return bytes(data)


def torch_sum(port: int, record: Record) -> Any:
    """An all-reduce with PyTorch, using the backend that a training would use; None without PyTorch."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        return None
    answer = []

    def work() -> None:
        answer.append(tried(record, "torch", lambda: all_reduce(port)))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TORCH_S)
    if not answer:
        record["faults"].append("torch: no answer within %d s" % TORCH_S)
    return answer[0] if answer else None


def all_reduce(port: int) -> Dict[str, Any]:
    """Sum a number with PyTorch."""
    import torch
    import torch.distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.is_available()
    backend = "nccl" if cuda else "gloo"
    place = "tcp://%s:%d" % (os.environ["MASTER_ADDR"], port)
    limit = dt.timedelta(seconds=TORCH_S / 2)
    torch.distributed.init_process_group(backend, init_method=place, rank=rank, world_size=size, timeout=limit)
    one = torch.ones(1024, device="cuda:0" if cuda else "cpu") * (rank + 1)
    torch.distributed.all_reduce(one)
    if one[0].item() != size * (size + 1) / 2:
        raise ValueError("wrong sum")
    torch.distributed.destroy_process_group()
    return {"version": torch.__version__, "backend": backend}


def awaited(path: str) -> str:
    """The text of a file that another process writes. Raises OSError if it does not appear."""
    end = time.time() + WAIT_S
    while True:
        try:
            os.listdir(os.path.dirname(path))
            with open(path) as stream:
                return stream.read()
        except OSError:
            if time.time() > end:
                raise
            time.sleep(0.2)


def write(path: str, text: str) -> None:
    """Write a file that only this user can read atomically."""
    draft = "%s.%s" % (path, os.urandom(8).hex())
    with new_file(draft) as stream:
        stream.write(text)
    os.rename(draft, path)
