"""The node check on one node: what a training needs from it, measured before the training starts.

    python3 -I agent.pyz check ATTEMPT_DIR NODE [EXPECTATION...]

Standard library of Python 3.6 or later, in the run's agent.pyz, run by the host's `python3` on
every node. Each check is a process of its own with a time limit, so that a driver or a mount
that hangs cannot block the others. Each result goes at once to the node's file, which judge.py reads on the first node;
where the attempt's folder is not shared, it is printed, and srun or ssh passes it on.

check_host.py, check_gpus.py and check_intel.py hold the checks; the first describes
their results.
check_image.py describes how the software in an image is checked.
"""

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Callable, Dict, Iterator, List, Tuple

from hpc_launch.agent.check_full import IMPORT, Measuring, place_of
from hpc_launch.agent.check_gpus import (
    CLEAR_S,
    COMPUTE_S,
    DCGM_S,
    SMI_S,
    amd,
    amd_errors,
    compute,
    dcgm,
    kernel_log,
    nvidia,
    nvidia_driver,
    nvidia_links,
    nvidia_processes,
    nvidia_state,
)
from hpc_launch.agent.check_host import (
    CHECK_S,
    SOFTWARE_S,
    Result,
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
from hpc_launch.agent.check_image import IMAGE_S, PART, Inside
from hpc_launch.agent.check_intel import intel, intel_errors, intel_processes, intel_state
from hpc_launch.agent.check_peers import PEERS_S, PORTS, Peers, code, own_name, pdsh
from hpc_launch.agent.check_send import TASK_S, Reports

Check = Callable[[], Result]
LONGEST = 60000
"""A pipe holds 64 KiB, so that no check waits for a reader."""


class Running:
    """The checks of this node that run."""

    def __init__(self) -> None:
        self.checks: Dict[int, Tuple[str, int, float, List[bytes]]] = {}

    def start(self, checks: Dict[str, Tuple[Check, float]]) -> None:
        """Start checks, each with its limit in seconds."""
        for name, (check, limit) in checks.items():
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                self.work(check, read, write)
            os.close(write)
            self.checks[read] = (name, child, time.monotonic() + limit, [])

    def work(self, check: Check, read: int, write: int) -> None:
        """The process of a check. It never returns."""
        try:
            os.setpgid(0, 0)
            os.close(read)
            try:
                outcome = check()
            except subprocess.TimeoutExpired as late:
                outcome = result(False, "%s gives no answer within %d s" % (late.cmd[0], late.timeout))
            except Exception as error:
                outcome = unknown("%s: %s" % (type(error).__name__, error))
            os.write(write, json.dumps(outcome).encode()[:LONGEST])
        finally:
            os._exit(0)

    def results(self, beat: float) -> Iterator[List[Result]]:
        """The results as they come, or none after `beat` seconds; a check that exceeds its time fails."""
        while self.checks:
            soonest = min(entry[2] for entry in self.checks.values())
            ready = select.select(list(self.checks), [], [], min(beat, max(0.0, soonest - time.monotonic())))[0]
            found = []
            for pipe in list(self.checks):
                name, child, end, parts = self.checks[pipe]
                data = os.read(pipe, 1 << 16) if pipe in ready else b""
                if data:
                    parts.append(data)
                elif pipe in ready or time.monotonic() >= end:
                    found.append(finished(name, child, b"".join(parts), late=pipe not in ready))
                    os.close(pipe)
                    del self.checks[pipe]
            if found or not ready:
                yield found


def finished(name: str, child: int, data: bytes, late: bool) -> Result:
    """The result of a check that has ended, or that did not in time. Waits for no process: it may never end."""
    for pid in (-child, child):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    os.waitpid(child, os.WNOHANG)
    try:
        found: Result = json.loads(data.decode())
    except ValueError:
        found = result(False, "%s: no answer" % name) if late else unknown("the check itself ended early")
    found["check"] = name
    return found


Checks = Dict[str, Tuple[Check, float]]


def host_checks(args: argparse.Namespace) -> Checks:
    """What is checked on every node, with the time limit of each."""
    checks: Checks = {
        "memory": (memory, CHECK_S),
        "shm": (shared_memory, CHECK_S),
        "infiniband": (infiniband, CHECK_S),
        "host name": (partial(host_name, args.master, args.first), CHECK_S),
    }
    if not args.alone:  # compared with the other nodes
        checks["cpu"] = (cpu_speed, CHECK_S)
    for name in filter(None, args.interfaces.split(":")):
        checks["interface " + name] = (partial(interface, name), CHECK_S)
    for path in args.path:
        checks["path " + path] = (partial(readable, path), CHECK_S)
    for path in sorted({os.path.normpath(os.path.expandvars(path)) for path in args.writable}):
        checks["writing to " + path] = (partial(writable, path), CHECK_S)
    if args.workdir:
        checks["working folder"] = (partial(enterable, args.workdir), CHECK_S)
    if args.peer:  # without Slurm, nobody else keeps the nodes the same
        checks["own name"] = (partial(own_name, args.gpus), CHECK_S)
        if args.workdir:
            runs = os.path.dirname(os.path.dirname(os.path.dirname(args.attempt)))
            checks["code"] = (partial(code, os.environ.get("HPC_LAUNCH_CODE") or args.workdir, runs), CHECK_S)
    if args.pdsh:
        checks["pdsh"] = (partial(pdsh, args.first, args.pdsh.replace("any", "")), CHECK_S + 1)
    return checks


def software_checks(args: argparse.Namespace) -> Checks:
    """What the training's own Python checks, in the image if the job has one."""
    checks: Checks = {}
    if args.python and args.inside == args.image:
        checks["software"] = (partial(software, args.python, args.script), SOFTWARE_S + 1)
        if args.gpus:
            checks["gpu compute"] = (partial(compute, args.python, args.gpus), COMPUTE_S + 1)
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
        checks["gpus"] = (partial(intel, args.gpus, args.gpu_model), SMI_S + 1)
        checks["gpu state"] = (intel_state, SMI_S + 1)
        tool = shutil.which("xpu-smi") is not None
        held = partial(intel_processes, args.gpus) if tool else partial(unknown, "no xpu-smi")
        checks["gpu processes"] = (held, CLEAR_S + 2 * SMI_S + 1)
        if args.full:
            errors = partial(intel_errors, args.gpus) if tool else partial(unknown, "no xpu-smi")
            checks["gpu errors"] = (errors, SMI_S + 1)
    elif shutil.which("nvidia-smi"):
        checks["gpus"] = (partial(nvidia, args.gpus, args.gpu_model), SMI_S + 1)
        checks["gpu driver"] = (nvidia_driver, SMI_S + 1)
        checks["gpu state"] = (nvidia_state, 3 * SMI_S + 1)
        checks["gpu links"] = (partial(nvidia_links, args.gpus), SMI_S + 1)
        checks["gpu processes"] = (partial(nvidia_processes, args.gpus), CLEAR_S + 2 * SMI_S + 1)
        if args.full and shutil.which("dcgmi"):
            checks["gpu diagnosis"] = (partial(dcgm, args.gpus), DCGM_S + 1)
        elif args.full:
            checks["gpu diagnosis"] = (partial(unknown, "no dcgmi"), CHECK_S)
    else:
        checks["gpus"] = (partial(unknown, "no nvidia-smi"), CHECK_S)
    if args.gpus_of_others and "gpu processes" in checks:
        checks["gpu processes"] = (partial(unknown, "other runs may use the GPUs"), CHECK_S)
    return checks


def folder_checks(files: Dict[str, str]) -> Checks:
    """Files that the first node wrote have to appear here."""
    folders = {path: os.path.dirname(path) for path in files}
    return {"shared folder " + folders[path]: (partial(shared, path, files[path]), CHECK_S) for path in files}


def measure(measuring: Measuring, reports: Reports) -> None:
    """Measure what the judge asks for, until it has no more tasks (`preflight: full`)."""
    while True:
        task = reports.task(place_of(reports.address, reports.master, reports.port))
        if not task:
            break
        reports.send(results=measuring.do(task, reports.address))
    measuring.close()


def main(words: List[str]) -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt")
    parser.add_argument("node")
    parser.add_argument("--master", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--alone", action="store_true", help="the job has one node")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--gpus-of-others", action="store_true", help="other runs may use the GPUs")
    parser.add_argument("--peer", action="append", default=[], help="a node's name and address")
    parser.add_argument("--pdsh", default="", help="what pdsh uses: `ssh`, or `any` for its own choice")
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
    parser.add_argument("--image", action="store_true", help="the training's Python is in an image")
    parser.add_argument("--within", default="", help="a script that starts Python in the image")
    parser.add_argument("--inside", action="store_true", help="this is the image")
    args = parser.parse_known_args(words)[0]  # some expectations are the judge's
    args.python, args.script = os.path.expandvars(args.python), os.path.expandvars(args.script)
    (inside if args.inside else outside)(args)


def outside(args: argparse.Namespace) -> None:
    """Check this node and report; start the part inside the image, if any."""
    began = time.monotonic()
    reports, running = Reports(args.attempt, args.node, args.master, args.port), Running()
    image = Inside(args.within, args.python, args.attempt) if args.within else None
    checks = dict(host_checks(args), **(gpu_checks(args) if args.gpus else {}), **software_checks(args))
    peers = Peers(args.node, args.peer, args.port) if args.peer else None
    if peers is not None:
        checks[PORTS] = (peers.reached, PEERS_S + 1)
    if image is not None:
        checks[PART] = (image.started, IMAGE_S + 1)
    running.start(checks)
    port = reports.connect()
    folders = folder_checks(reports.files)
    running.start(folders)
    started = dict(result(True, sys.executable), check="start")
    rest(args, reports, running, [*checks, *folders], [started, *port])
    reports.send(done=True, seconds=round(time.monotonic() - began, 2))
    problem = image.ended(TASK_S if args.full else COMPUTE_S + IMAGE_S) if image is not None else None
    if problem is not None:
        reports.send(part=PART, done=True, results=[dict(problem, check="software")])
    if peers is not None:
        peers.end()


def inside(args: argparse.Namespace) -> None:
    """Check the software in the image and report."""
    reports, running = Reports(args.attempt, args.node, args.master, args.port, PART), Running()
    checks = software_checks(args)
    running.start(checks)
    reports.connect()
    rest(args, reports, running, [*checks], [] if args.within else [dict(result(True, sys.executable), check=PART)])
    reports.send(done=True)


def rest(args: argparse.Namespace, reports: Reports, running: Running, begun: List[str], results: List[Result]) -> None:
    """Send the results as they come, then measure what the judge asks for."""
    measuring = None
    if args.full and reports.file is not None and args.inside == args.image:
        measuring = Measuring(args.python, args.gpus, args.tasks, args.fabric)
        running.start({IMPORT: (measuring.imported, COMPUTE_S + 1)})
        begun = [*begun, IMPORT]
    # The names first: the judge knows what a node that freezes still owes.
    reports.send(begun=begun, results=results, clock_ahead_s=None if args.inside else reports.ahead)
    for found in running.results(reports.beat_s):
        reports.send(results=found) if found else reports.beat()
    if measuring is not None:
        measure(measuring, reports)
