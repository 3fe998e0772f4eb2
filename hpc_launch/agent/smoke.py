"""Measure what a cluster's nodes offer a training, with one process on each node of a small job.

    agent.pyz smoke FOLDER [--folder NAME=PATH]... [--reach HOST:PORT]... [--python PATH]

Started by `hpc-launch sites learn --smoke` through the job's own step, which sets RANK, WORLD_SIZE and MASTER_ADDR.
FOLDER must be on shared storage: the first process writes its address there, and each process writes `rank-N.json`.
Values that cannot be measured are null, with the reason under `faults`. Exits with 0 if the processes connected and
their sums were correct. Standard library of Python 3.6 or later.
"""

import argparse
import glob
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional

from hpc_launch.agent.describe_host import line, nvidia
from hpc_launch.agent.smoke_together import Record, together, tried, write

RUNTIMES = ("apptainer", "singularity", "enroot", "podman-hpc", "shifter", "ch-run")
REACH_S = 4.0


def main(words: List[str]) -> int:
    """Measure, write the record, and return 0 if the sums were correct."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--folder", action="append", default=[])
    parser.add_argument("--reach", action="append", default=[])
    parser.add_argument("--python", default="")
    args = parser.parse_args(words)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    use_python_with_torch(args.python)
    folders = dict(item.split("=", 1) for item in args.folder)
    record: Record = {"rank": rank, "size": size, "host": socket.gethostname(), "faults": []}
    for key, measure in (
        ("python", lambda: "%d.%d.%d" % sys.version_info[:3]),
        ("fabric", fabric),
        ("gpus", gpus),
        ("runtimes", lambda: [name for name in RUNTIMES if shutil.which(name)]),
        ("internet", lambda: internet(args.reach)),
        ("together", lambda: together(args.out, folders, rank, size, record)),
    ):
        record[key] = tried(record, key, measure)
    text = json.dumps(record, sort_keys=True)
    write(os.path.join(args.out, "rank-%d.json" % rank), text)
    print(text, flush=True)
    return 0 if size == 1 or (record["together"] or {}).get("sum_is_right") else 1


def use_python_with_torch(other: str) -> None:
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


def fabric() -> Dict[str, Any]:
    """The adapters of a fast network, from sysfs."""
    ports = sorted(glob.glob("/sys/class/infiniband/*/ports/*"))
    adapters = [{"name": port.split("/")[4], "link": line(port + "/link_layer")} for port in ports]
    names = [name for _, name in socket.if_nameindex()]
    return {"adapters": adapters, "slingshot": sorted(name for name in names if name.startswith("hsn"))}


def gpus() -> Dict[str, Any]:
    """The GPUs visible to a process, from variables, device files and nvidia-smi."""
    wanted = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS")
    return {
        "variables": {name: os.environ[name] for name in wanted if name in os.environ},
        "nvidia": len(glob.glob("/dev/nvidia[0-9]*")),
        "amd": len(glob.glob("/dev/dri/renderD*")) if os.path.exists("/dev/kfd") else 0,
        "models": ["%s, %d" % (gpu["model"], gpu["memory"]) for gpu in nvidia()],
    }


def internet(targets: List[str]) -> Optional[Dict[str, Any]]:
    """How one of the targets is reachable: `direct`, `none`, or `proxy` with an address that has no password."""
    results = []  # type: List[str]
    threads = [threading.Thread(target=reach, args=(one, results), daemon=True) for one in targets]
    for thread in threads:
        thread.start()
    end = time.time() + REACH_S
    while time.time() < end and not results and any(thread.is_alive() for thread in threads):
        time.sleep(0.05)
    if results:
        return {"compute": "direct"}
    proxy = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY") or ""
    for target in targets if proxy else ():
        if through(proxy, target):
            secret = "@" in proxy
            return {"compute": "proxy", "needs_password": True} if secret else {"compute": "proxy", "proxy": proxy}
    return {"compute": "none"} if targets else None


def reach(target: str, results: List[str]) -> None:
    """Add the target to the results if it answers."""
    host, _, port = target.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=REACH_S):
            results.append(target)
    except (OSError, ValueError):
        pass


def through(proxy: str, target: str) -> bool:
    """Whether an HTTP proxy connects to the target."""
    host, _, port = proxy.rpartition("//")[2].rstrip("/").rpartition("@")[2].partition(":")
    try:
        with socket.create_connection((host, int(port or "3128")), timeout=REACH_S) as one:
            one.sendall(("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, target)).encode())
            return b" 200" in one.recv(64)
    except (OSError, ValueError):
        return False
