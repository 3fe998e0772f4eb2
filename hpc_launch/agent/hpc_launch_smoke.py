"""Measure what a cluster's nodes offer a training, with one process on each node of a small job.

    python3 hpc_launch_smoke.py FOLDER [--folder NAME=PATH]... [--reach HOST:PORT]... [--python PATH]

Self-contained: standard library of Python 3.6 or later, started by `hpc-launch sites learn --smoke` through the job's
own step, which sets RANK, WORLD_SIZE and MASTER_ADDR. FOLDER must be on shared storage: the first process writes its
address there, and each process writes `rank-N.json`. Values that cannot be measured are null, with the reason under
`faults`. Exits with 0 if the processes connected and their sums were correct.
"""

import argparse
import array
import datetime as dt
import fcntl
import glob
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional

WAIT_S = 60.0
"""Seconds that the other processes wait for the first one, which may start later on a cold file system."""
REACH_S = 4.0
TORCH_S = 120.0
COUNT = 1 << 18
"""Numbers to sum: 2 MiB, enough to show in an interface's counters."""
RUNTIMES = ("apptainer", "singularity", "enroot", "podman-hpc", "shifter", "ch-run")
SIOCGIFADDR = 0x8915
TEMPORARY = "/tmp"  # noqa: S108 - tested for being usable


def main() -> int:
    """Measure, write the record, and return 0 if the sums were correct."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--folder", action="append", default=[])
    parser.add_argument("--reach", action="append", default=[])
    parser.add_argument("--python", default="")
    args = parser.parse_args()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    _use_python_with_torch(args.python)
    folders = dict(item.split("=", 1) for item in args.folder)
    record = {"rank": rank, "size": size, "faults": []}  # type: Dict[str, Any]
    for key, measure in (
        ("host", socket.gethostname),
        ("python", lambda: "%d.%d.%d" % sys.version_info[:3]),
        ("interfaces", interfaces),
        ("fabric", fabric),
        ("gpus", gpus),
        ("runtimes", lambda: [name for name in RUNTIMES if shutil.which(name)]),
        ("temporary", temporary),
        ("internet", lambda: internet(args.reach)),
    ):
        record[key] = tried(record, key, measure)
    record["together"] = tried(record, "together", lambda: together(args.out, folders, rank, size, record))
    text = json.dumps(record, sort_keys=True)
    write(os.path.join(args.out, "rank-%d.json" % rank), text)
    print(text, flush=True)
    return 0 if size == 1 or (record["together"] or {}).get("sum_is_right") else 1


def tried(record: Dict[str, Any], what: str, measure: Callable[[], Any]) -> Any:
    """The measured value; None if the measurement failed, with the error recorded under `faults`."""
    try:
        return measure()
    except Exception as error:  # nodes can fail in any way
        record["faults"].append("%s: %s: %s" % (what, type(error).__name__, error))
        return None


def _use_python_with_torch(other: str) -> None:
    """Re-execute with the other interpreter if only that has PyTorch."""
    import importlib.util

    if importlib.util.find_spec("torch") or not other or not os.access(other, os.X_OK):
        return
    look = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('torch') else 1)"
    try:
        has_torch = subprocess.call([other, "-c", look], cwd="/", timeout=30) == 0
    except (OSError, subprocess.TimeoutExpired):
        return
    if has_torch:
        arguments = [arg for at, arg in enumerate(sys.argv) if "--python" not in sys.argv[max(at - 1, 0) : at + 1]]
        os.execv(other, [other, *arguments])  # noqa: S606 - no shell needed


def write(path: str, text: str) -> None:
    """Write a file atomically."""
    draft = "%s.%d" % (path, os.getpid())
    with open(draft, "w") as stream:
        stream.write(text)
    os.rename(draft, path)


def interfaces() -> Dict[str, List[str]]:
    """The IPv4 addresses of each network interface."""
    result = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(one.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                result[name] = [socket.inet_ntoa(answer[20:24])]
            except OSError:
                result[name] = []
    return result


def bytes_of(name: str) -> Optional[int]:
    """Bytes sent and received by an interface, in this process's network namespace."""
    with open("/proc/net/dev") as stream:
        for line in stream:
            head, colon, rest = line.partition(":")
            if colon and head.strip() == name:
                numbers = rest.split()
                return int(numbers[0]) + int(numbers[8])
    return None


def fabric() -> Dict[str, Any]:
    """The adapters of a fast network, from sysfs."""
    adapters = []
    for port in sorted(glob.glob("/sys/class/infiniband/*/ports/*")):
        parts = port.split("/")
        adapters.append({"name": parts[4], "link": _line(port + "/link_layer"), "rate": _line(port + "/rate")})
    names = [name for _, name in socket.if_nameindex()]
    return {"adapters": adapters, "slingshot": sorted(name for name in names if name.startswith("hsn"))}


def _line(path: str) -> Optional[str]:
    try:
        with open(path) as stream:
            return stream.readline().strip()
    except OSError:
        return None


def gpus() -> Dict[str, Any]:
    """The GPUs visible to a process, from variables, device files and nvidia-smi."""
    wanted = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS")
    result = {}  # type: Dict[str, Any]
    result["variables"] = {name: os.environ[name] for name in wanted if name in os.environ}
    result["nvidia"] = len(glob.glob("/dev/nvidia[0-9]*"))
    result["amd"] = len(glob.glob("/dev/dri/renderD*")) if os.path.exists("/dev/kfd") else 0
    result["models"] = []
    if shutil.which("nvidia-smi"):
        words = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False)
        result["models"] = [line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines()]
    return result


def temporary() -> Dict[str, Any]:
    """Node-local temporary folders, and whether they are writable."""
    result = {}
    for name in ("SLURM_TMPDIR", "TMPDIR", "LOCAL_SCRATCH", ""):
        path = os.environ.get(name) if name else TEMPORARY
        if path:
            result[name or TEMPORARY] = {"path": path, "writable": os.path.isdir(path) and os.access(path, os.W_OK)}
    return result


def internet(targets: List[str]) -> Optional[Dict[str, str]]:
    """How one of the targets is reachable: `direct`, `proxy` with its address, or `none`."""
    results = []  # type: List[str]
    threads = [threading.Thread(target=_reach, args=(one, results), daemon=True) for one in targets]
    for thread in threads:
        thread.start()
    end = time.time() + REACH_S
    while time.time() < end and not results and any(thread.is_alive() for thread in threads):
        time.sleep(0.05)
    if results:
        return {"compute": "direct"}
    proxy = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY") or ""
    for target in targets if proxy else ():
        if _through(proxy, target):
            return {"compute": "proxy", "proxy": proxy}
    return {"compute": "none"} if targets else None


def _reach(target: str, results: List[str]) -> None:
    host, _, port = target.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=REACH_S):
            results.append(target)
    except (OSError, ValueError):
        pass


def _through(proxy: str, target: str) -> bool:
    """Whether an HTTP proxy connects to the target."""
    host, _, port = proxy.rpartition("//")[2].rstrip("/").rpartition("@")[2].partition(":")
    try:
        with socket.create_connection((host, int(port or "3128")), timeout=REACH_S) as one:
            one.sendall(("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, target)).encode())
            return b" 200" in one.recv(64)
    except (OSError, ValueError):
        return False


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
        path = os.path.join(folder, ".hpc-launch-probe-%s-%d" % (socket.gethostname(), os.getpid()))
        try:
            with open(path, "w") as stream:
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
        meeting = {"port": server.getsockname()[1], "torch_port": torch_port, "addresses": addresses, "probes": probes}
        write(os.path.join(out, "meeting.json"), json.dumps(meeting))
        peers = [server.accept()[0] for _ in range(size - 1)]
    for peer in peers:
        peer.settimeout(WAIT_S)
    hosts = [socket.gethostname()] + [receive(peer).decode() for peer in peers]
    names = json.dumps(hosts).encode()
    for peer in peers:
        send(peer, names)
    result["names"] = resolved(hosts)
    if peers:
        _measured(result, record, peers[0], lambda: _sum_first(peers, size))
    result["by"], result["folders"] = "name", dict.fromkeys(probes, True)
    result["torch"] = _torch(torch_port, record) if size > 1 else None
    for peer in peers:
        receive(peer)
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
        send(peer, socket.gethostname().encode())
        result["names"] = resolved(json.loads(receive(peer).decode()))
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
        theirs.frombytes(receive(peer))
        total = array.array("d", map(sum, zip(total, theirs)))
    for peer in peers:
        send(peer, total.tobytes())
    return total[0] == total[-1] == size * (size + 1) / 2


def _sum_other(peer: socket.socket, size: int) -> bool:
    rank = int(os.environ["RANK"])
    send(peer, (array.array("d", [rank + 1.0]) * COUNT).tobytes())
    total = array.array("d")
    total.frombytes(receive(peer))
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


def receive(peer: socket.socket) -> bytes:
    """Receive one message. Raises OSError if the peer is gone."""
    (length,) = struct.unpack("!Q", _exactly(peer, 8))
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


if __name__ == "__main__":
    sys.exit(main())
