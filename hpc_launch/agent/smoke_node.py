"""What one node offers: interfaces, fabric, GPUs, temporary folders, internet. For smoke.py.

Self-contained: standard library of Python 3.6 or later.
"""

import fcntl
import glob
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from typing import Any, Callable, Dict, List, Optional

REACH_S = 4.0
SIOCGIFADDR = 0x8915
TEMPORARY = "/tmp"  # noqa: S108 - tested for being usable


def tried(record: Dict[str, Any], what: str, measure: Callable[[], Any]) -> Any:
    """The measured value; None if the measurement failed, with the error recorded under `faults`."""
    try:
        return measure()
    except Exception as error:  # nodes can fail in any way
        record["faults"].append("%s: %s: %s" % (what, type(error).__name__, error))
        return None


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


def internet(targets: List[str]) -> Optional[Dict[str, Any]]:
    """How one of the targets is reachable: `direct`, `none`, or `proxy` with an address that has no password."""
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
            secret = "@" in proxy
            return {"compute": "proxy", "needs_password": True} if secret else {"compute": "proxy", "proxy": proxy}
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
