"""Measurements across the nodes: host names, shared folders, sums over TCP and with PyTorch. For smoke.py.

Self-contained: standard library of Python 3.6 or later. The first process writes its address to a shared folder, where
the others find it.
"""

import array
import datetime as dt
import json
import os
import socket
import threading
import time
from typing import Any, Callable, Dict, List

from hpc_launch.agent.smoke_node import bytes_of, tried
from hpc_launch.agent.smoke_peers import LONGEST_NAME, MOST_STRANGERS, WAIT_S, accepted, proof, receive, send

TORCH_S = 120.0
COUNT = 1 << 18
"""Numbers to sum: 2 MiB, enough to show in an interface's counters."""


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
        server.listen(size + MOST_STRANGERS)
        server.settimeout(WAIT_S)
        with socket.socket() as later:
            later.bind(("", 0))
            torch_port = later.getsockname()[1]
        addresses = [one for name, all_of in record["interfaces"].items() for one in all_of if name != "lo"]
        key = os.urandom(32)
        meeting = {"port": server.getsockname()[1], "torch_port": torch_port, "addresses": addresses, "probes": probes}
        write(os.path.join(out, "meeting.json"), json.dumps(dict(meeting, key=key.hex())))
        peers = accepted(server, key, size - 1)
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
        send(peer, proof(bytes.fromhex(meeting["key"]), receive(peer, LONGEST_NAME)))
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


def write(path: str, text: str) -> None:
    """Write a file that only this user can read atomically."""
    draft = "%s.%s" % (path, os.urandom(8).hex())
    with _new_file(draft) as stream:
        stream.write(text)
    os.rename(draft, path)


def _new_file(path: str) -> Any:
    """A file that this process has made. Raises OSError, also for a link that somebody put there."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w")
