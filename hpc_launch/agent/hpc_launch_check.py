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
import os
import shutil
import sys
import time
from functools import partial
from typing import Dict, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python -I leaves it out

from hpc_launch_check_dcgm import DCGM_S, dcgm
from hpc_launch_check_full import IMPORT, Measuring, place_of
from hpc_launch_check_gpus import (
    CLEAR_S,
    COMPUTE_S,
    SMI_S,
    amd,
    amd_errors,
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
    cpu_speed,
    enterable,
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
from hpc_launch_check_send import Reports

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
        checks["writing to " + path] = (partial(writable, path), CHECK_S)
    if args.workdir:
        checks["working folder"] = (partial(enterable, args.workdir), CHECK_S)
    if args.python:
        checks["software"] = (partial(software, args.python, args.script), SOFTWARE_S + 1)
    return checks


def gpu_checks(args: argparse.Namespace) -> Checks:
    """What is checked on a node with GPUs, with the time limit of each."""
    checks: Checks = {"kernel log": (kernel_log, CHECK_S + 1)}
    if args.gpu_vendor == "amd":
        checks["gpus"] = (partial(amd, args.gpus), CHECK_S)
        if args.full:
            errors = partial(amd_errors, args.gpus) if shutil.which("amd-smi") else partial(unknown, "no amd-smi")
            checks["gpu errors"] = (errors, SMI_S + 1)
    elif args.gpu_vendor == "intel":
        checks["gpus"] = (partial(intel, args.gpus), CHECK_S)
    elif shutil.which("nvidia-smi"):
        checks["gpus"] = (partial(nvidia, args.gpus, args.gpu_model), SMI_S + 1)
        checks["gpu state"] = (nvidia_state, 3 * SMI_S + 1)
        checks["gpu links"] = (partial(nvidia_links, args.gpus), SMI_S + 1)
        checks["gpu processes"] = (partial(nvidia_processes, args.gpus), CLEAR_S + 2 * SMI_S + 1)
        if args.full and shutil.which("dcgmi"):
            checks["gpu diagnosis"] = (partial(dcgm, args.gpus), DCGM_S + 1)
        elif args.full:
            checks["gpu diagnosis"] = (partial(unknown, "no dcgmi"), CHECK_S)
    else:
        checks["gpus"] = (partial(unknown, "no nvidia-smi"), CHECK_S)
    if args.python:
        checks["gpu compute"] = (partial(compute, args.python, args.gpus), COMPUTE_S + 1)
    return checks


def folder_checks(files: Dict[str, str]) -> Checks:
    """Files that the first node wrote have to appear here."""
    folders = {path: os.path.dirname(path) for path in files}
    return {"shared folder " + folders[path]: (partial(shared, path, files[path]), CHECK_S) for path in files}


def measure(measuring: Measuring, reports: Reports) -> None:
    """Measure what the judge asks for, until it has no more tasks (`preflight: full`)."""
    while True:
        task = reports.task(place_of(reports.peer, reports.master, reports.port))
        if not task:
            break
        reports.send(results=measuring.do(task, reports.peer))
    measuring.close()


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
    parser.add_argument("--workdir", default="")
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--writable", action="append", default=[])
    parser.add_argument("--python", default="")
    parser.add_argument("--script", default="")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--fabric", default="")
    args = parser.parse_known_args()[0]  # some expectations are the judge's
    args.python, args.script = os.path.expandvars(args.python), os.path.expandvars(args.script)
    began = time.monotonic()
    reports, running = Reports(args.attempt, args.node, args.master, args.port), Running()
    checks = dict(host_checks(args), **(gpu_checks(args) if args.gpus else {}))
    running.start(checks)
    port = reports.connect()
    folders = folder_checks(reports.files)
    running.start(folders)
    measuring = Measuring(args.python, args.gpus, args.tasks, args.fabric) if args.full and reports.peer else None
    if measuring is not None:
        running.start({IMPORT: (measuring.imported, COMPUTE_S + 1)})
    # The names first: the judge knows what a node that freezes still owes.
    started = dict(result(True, sys.executable), check="start")
    begun = [*checks, *folders, *([IMPORT] if measuring else [])]
    reports.send(begun=begun, results=[started, *port], clock_ahead_s=reports.ahead)
    for found in running.results():
        reports.send(results=found)
    if measuring is not None:
        measure(measuring, reports)
    reports.send(done=True, seconds=round(time.monotonic() - began, 2))
    reports.close()


if __name__ == "__main__":
    main()
