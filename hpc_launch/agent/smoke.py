"""Measure what a cluster's nodes offer a training, with one process on each node of a small job.

    python3 smoke.py FOLDER [--folder NAME=PATH]... [--reach HOST:PORT]... [--python PATH]

Self-contained: standard library of Python 3.6 or later, with its parts `hpc_launch_smoke_*.py`
beside it, started by `hpc-launch sites learn --smoke` through the job's own step, which sets RANK, WORLD_SIZE and
MASTER_ADDR. FOLDER must be on shared storage: the first process writes its address there, and each process writes
`rank-N.json`. Values that cannot be measured are null, with the reason under `faults`. Exits with 0 if the processes
connected and their sums were correct.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
from typing import Any, Dict, List

from hpc_launch.agent.smoke_node import fabric, gpus, interfaces, internet, temporary, tried
from hpc_launch.agent.smoke_together import together, write

RUNTIMES = ("apptainer", "singularity", "enroot", "podman-hpc", "shifter", "ch-run")


def main(words: List[str]) -> int:
    """Measure, write the record, and return 0 if the sums were correct."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--folder", action="append", default=[])
    parser.add_argument("--reach", action="append", default=[])
    parser.add_argument("--python", default="")
    args = parser.parse_args(words)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    _use_python_with_torch(args.python)
    folders = dict(item.split("=", 1) for item in args.folder)
    record: Dict[str, Any] = {"rank": rank, "size": size, "faults": []}
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
