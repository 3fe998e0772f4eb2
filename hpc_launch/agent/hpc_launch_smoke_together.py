"""Measurements across the nodes: host names, shared folders, sums over TCP and with PyTorch. For hpc_launch_smoke.py.

Self-contained: standard library of Python 3.6 or later. The first process writes its address to a shared folder, where
the others find it.
"""

import array
import datetime as dt
import hashlib
import hmac
import json
import os
import select
import socket
import struct
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from hpc_launch_smoke_node import bytes_of, tried

WAIT_S = 60.0
"""Seconds that the other processes wait for the first one, which may start later on a cold file system."""
TORCH_S = 120.0
COUNT = 1 << 18
"""Numbers to sum: 2 MiB, enough to show in an interface's counters."""
LONGEST_NAME = 1024
"""Bytes of a host name, and of the other short messages."""
GREETING_S = 2.0
"""Seconds that a process has to prove that it knows the key. Another user may connect to the port, too."""
MOST_STRANGERS = 64


def together(out: str, folders: Dict[str, str], rank: int, size: int, record: Dict[str, Any]) -> Dict[str, Any]:
    """Measurements across nodes: host names, the interface between them, shared folders, sums."""
    result = {"folders": {}, "names": {}}  # type: Dict[str, Any]
    if rank == 0:
        probes = _leave_probes(folders)
        try:
            return _first(out, size, record, result, probes)
        finally:
            for path in probes.values():
                os.unlink(path)
    return _other(out, size, record, result)


def _leave_probes(folders: Dict[str, str]) -> Dict[str, str]:
    probes = {}
    for name, folder in folders.items():
        path = os.path.join(folder, ".hpc-launch-probe-" + os.urandom(16).hex())  # nobody can create it in advance
        try:
            with _new_file(path) as stream:
                stream.write(name)
            probes[name] = path
        except OSError:
            continue
    return probes


def _first(
    out: str, size: int, record: Dict[str, Any], result: Dict[str, Any], probes: Dict[str, str]
) -> Dict[str, Any]:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen(size)
        server.settimeout(WAIT_S)
        with socket.socket() as later:
            later.bind(("", 0))
            torch_port = later.getsockname()[1]
        addresses = [one for name, all_of in record["interfaces"].items() for one in all_of if name != "lo"]
        key = os.urandom(32)
        meeting = {"port": server.getsockname()[1], "torch_port": torch_port, "addresses": addresses, "probes": probes}
        write(os.path.join(out, "meeting.json"), json.dumps(dict(meeting, key=key.hex())))
        peers = _accepted(server, key, size - 1)
    hosts = [socket.gethostname()] + [receive(peer, LONGEST_NAME).decode() for peer in peers]
    names = json.dumps(hosts).encode()
    for peer in peers:
        send(peer, names)
    result["names"] = resolved(hosts)
    if peers:
        _measured(result, record, peers[0], lambda: _sum_first(peers, size))
    result["by"], result["folders"] = "name", dict.fromkeys(probes, True)
    result["torch"] = _torch(torch_port, record) if size > 1 else None
    for peer in peers:
        receive(peer, LONGEST_NAME)
        peer.close()
    return result


def _accepted(server: socket.socket, key: bytes, count: int) -> List[socket.socket]:
    """The connections of the other processes: those that know the key, which only this user can read.

    Strangers can connect, too: none of them keeps the others waiting. Raises OSError when the time is over.
    """
    peers = []  # type: List[socket.socket]
    waiting = {}  # type: Dict[socket.socket, Stranger]
    end = time.monotonic() + WAIT_S
    try:
        while len(peers) < count:
            now = time.monotonic()
            if now > end:
                raise OSError("%d of %d other processes did not connect" % (count - len(peers), count))
            for peer in select.select([server, *waiting], [], [], 0.5)[0]:
                if peer is server:
                    stranger = Stranger(server.accept()[0])
                    waiting[stranger.peer] = stranger
                    continue
                known = waiting[peer].known(key)
                if known is not None:
                    del waiting[peer]
                    peers.append(peer) if known else peer.close()
            late = [one for one in waiting.values() if one.since < now - GREETING_S]
            late += list(waiting.values())[: max(0, len(waiting) - MOST_STRANGERS - count)]
            for stranger in late:
                waiting.pop(stranger.peer, None)
                stranger.peer.close()
    finally:
        for peer in waiting:
            peer.close()
    for peer in peers:
        peer.settimeout(WAIT_S)
    return peers


class Stranger:
    """A connection that has not proved yet that it knows the key."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer, self.since = peer, time.monotonic()
        self.challenge = os.urandom(32)
        self.data = b""
        peer.setblocking(False)
        send(peer, self.challenge)  # fits into the socket's buffer

    def known(self, key: bytes) -> Optional[bool]:
        """Whether it has proved it; None while its answer is incomplete."""
        proof = _proof(key, self.challenge)
        wanted = struct.pack("!Q", len(proof)) + proof
        try:
            data = self.peer.recv(len(wanted) - len(self.data))
        except BlockingIOError:
            return None
        except OSError:
            return False
        self.data += data
        if data and len(self.data) < len(wanted):
            return None
        return hmac.compare_digest(self.data, wanted)


def _proof(key: bytes, challenge: bytes) -> bytes:
    return hmac.new(key, challenge, hashlib.sha256).digest()


def _other(out: str, size: int, record: Dict[str, Any], result: Dict[str, Any]) -> Dict[str, Any]:
    meeting = _meeting(os.path.join(out, "meeting.json"))
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
    result["by"] = "name" if address == master else "address"
    with peer:
        peer.settimeout(WAIT_S)
        send(peer, _proof(bytes.fromhex(meeting["key"]), receive(peer, LONGEST_NAME)))
        send(peer, socket.gethostname().encode())
        result["names"] = resolved(json.loads(receive(peer, LONGEST_NAME * size).decode()))
        for name, path in meeting["probes"].items():
            os.listdir(os.path.dirname(path))  # makes a network file system refresh its cache
            result["folders"][name] = os.path.exists(path)
        _measured(result, record, peer, lambda: _sum_other(peer, size))
        result["torch"] = _torch(meeting["torch_port"], record)
        send(peer, b"done")
    return result


def _meeting(path: str) -> Dict[str, Any]:
    end = time.time() + WAIT_S
    while True:
        try:
            os.listdir(os.path.dirname(path))
            with open(path) as stream:
                return dict(json.load(stream))
        except (OSError, ValueError):
            if time.time() > end:
                raise
            time.sleep(0.2)


def resolved(hosts: List[str]) -> Dict[str, List[str]]:
    """The addresses of each host name as resolved here; empty if unknown."""
    result = {}
    for host in hosts:
        try:
            result[host] = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None)})
        except OSError:
            result[host] = []
    return result


def _measured(result: Dict[str, Any], record: Dict[str, Any], peer: socket.socket, sums: Callable[[], bool]) -> None:
    """Sum over all processes, and record the interface that carried the data."""
    mine = peer.getsockname()[0]
    name = next((one for one, all_of in (record["interfaces"] or {}).items() if mine in all_of), None)
    result["interface"], result["address"] = name, mine
    before = bytes_of(name) if name else None
    begin = time.time()
    result["sum_is_right"] = sums()
    result["seconds"] = round(time.time() - begin, 4)
    after = bytes_of(name) if name else None
    result["bytes"] = after - before if after is not None and before is not None else None


def _sum_first(peers: List[socket.socket], size: int) -> bool:
    total = array.array("d", [1.0]) * COUNT
    for peer in peers:
        theirs = array.array("d")
        theirs.frombytes(receive(peer, 8 * COUNT))
        total = array.array("d", map(sum, zip(total, theirs)))
    for peer in peers:
        send(peer, total.tobytes())
    return total[0] == total[-1] == size * (size + 1) / 2


def _sum_other(peer: socket.socket, size: int) -> bool:
    rank = int(os.environ["RANK"])
    send(peer, (array.array("d", [rank + 1.0]) * COUNT).tobytes())
    total = array.array("d")
    total.frombytes(receive(peer, 8 * COUNT))
    return total[0] == total[-1] == size * (size + 1) / 2


def _torch(port: int, record: Dict[str, Any]) -> Any:
    """An all-reduce with PyTorch, using the backend that a training would use; None without PyTorch."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        return None
    answer = []

    def work() -> None:
        answer.append(tried(record, "torch", lambda: _all_reduce(port)))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TORCH_S)
    if not answer:
        record["faults"].append("torch: no answer within %d s" % TORCH_S)
    return answer[0] if answer else None


def _all_reduce(port: int) -> Dict[str, Any]:
    import torch
    import torch.distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.is_available()
    torch.distributed.init_process_group(
        "nccl" if cuda else "gloo",
        init_method="tcp://%s:%d" % (os.environ["MASTER_ADDR"], port),
        rank=rank,
        world_size=size,
        timeout=dt.timedelta(seconds=TORCH_S / 2),
    )
    one = torch.ones(1024, device="cuda:0" if cuda else "cpu") * (rank + 1)
    torch.distributed.all_reduce(one)
    right = bool(one[0].item() == size * (size + 1) / 2)
    torch.distributed.destroy_process_group()
    return {
        "version": torch.__version__,
        "backend": "nccl" if cuda else "gloo",
        "gpus": torch.cuda.device_count() if cuda else 0,
        "sum_is_right": right,
    }


def send(peer: socket.socket, data: bytes) -> None:
    """Send a message, prefixed with its length."""
    peer.sendall(struct.pack("!Q", len(data)) + data)


def receive(peer: socket.socket, most: int) -> bytes:
    """Receive one message of at most so many bytes. Raises OSError if it is longer, or if the peer is gone."""
    (length,) = struct.unpack("!Q", _exactly(peer, 8))
    if length > most:
        raise OSError("the peer announced %d bytes" % length)
    return _exactly(peer, length)


def _exactly(peer: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = peer.recv(min(count, 1 << 20))
        if not part:
            raise OSError("the peer closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def write(path: str, text: str) -> None:
    """Write a file that only this user can read atomically."""
    draft = "%s.%s" % (path, os.urandom(8).hex())
    with _new_file(draft) as stream:
        stream.write(text)
    os.rename(draft, path)


def _new_file(path: str) -> Any:
    """A file that this process has made. Raises OSError, also for a link that somebody put there."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w")
