"""The node check on one node: what a training needs from it, measured before the training starts.

    python3 -I agent.pyz check ATTEMPT_DIR NODE [EXPECTATION...]

Run by the host's `python3` on every node. Each check is a process of its own with a time limit, so that a driver or a
mount that hangs cannot block the others. Each result goes at once to the file of the node, which judge.py reads on the
first node. Where the attempt's folder is not shared, it is printed, and srun or ssh passes it on.

With --inside, it checks the software in the job's image and prints the results. The script starts it where the
container is an option of srun; elsewhere this program does, as the training is started in the image.
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
from types import GeneratorType
from typing import Any, Callable, Dict, Iterator, List, NamedTuple

from hpc_launch.agent import check_full as full
from hpc_launch.agent import check_gpus as gpus
from hpc_launch.agent import check_host as host
from hpc_launch.agent import check_ssh as ssh
from hpc_launch.agent.check_compare import PORTS
from hpc_launch.agent.check_host import CHECK_S, IMAGE, INSIDE, PORT, Result, appears, order_file, result, unknown
from hpc_launch.agent.job_processes import send

SLOW_S = 14.5
"""How long software and PyTorch are waited for where half of the nodes have passed; twice as long in an image."""
STARTED = "hpc-launch: started"
"""What the command prints when it is in the image (job.sh.j2)."""
FILE_S, COPY_S = 4.0, 0.5
"""How long the node's file may take to appear: the judge may start later than the node, or the folder is a copy."""
BEAT_S = 1.0
"""How often a node at least reports: the judge knows then that it is alive."""
ORDER_S = 600.0
"""How long the judge may take to ask for the next step: until then, it waits for other nodes."""


class Check(NamedTuple):
    """A check, its limit in seconds, and how long it is waited for where half of the nodes have passed it.

    It returns a result, or a list of results with names, or yields such lists.
    """

    run: Callable[[], Any]
    limit: float = CHECK_S
    wait: float = CHECK_S + 0.4


Checks = Dict[str, Check]


class Process:
    """The process of a check, and what it has written of its next line."""

    def __init__(self, name: str, check: Check) -> None:
        self.name, self.end, self.data, self.said = name, time.monotonic() + check.limit, b"", False
        self.pipe, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                with os.fdopen(write, "wb", buffering=0) as output:
                    for found in lists_of(name, check):
                        output.write(json.dumps(found).encode() + b"\n")
            finally:
                os._exit(0)
        os.close(write)

    def read(self, ready: bool) -> List[Result]:
        """The results that have come, or what follows from its end, or that it has not answered in time."""
        data = os.read(self.pipe, 1 << 16) if ready else b""
        *lines, self.data = (self.data + data).split(b"\n")
        found = [one for line in lines for one in json.loads(line.decode())]
        self.said = self.said or bool(found)
        if not data:
            if not ready:
                found.append(dict(result(False, "%s: no answer" % self.name), check=self.name))
            elif not self.said:
                found.append(dict(unknown("the check itself ended early"), check=self.name))
            self.close()
        return found

    def close(self) -> None:
        """End it and what it has started. Waits for none: it may never end."""
        for pid in (-self.pid, self.pid):
            send(pid, signal.SIGKILL)
        os.waitpid(self.pid, os.WNOHANG)
        os.close(self.pipe)
        self.pipe = -1


def lists_of(name: str, check: Check) -> Iterator[List[Result]]:
    """What a check finds, as it comes."""
    try:
        outcome = check.run()
        for found in outcome if isinstance(outcome, GeneratorType) else [outcome]:
            yield found if isinstance(found, list) else [dict(found, check=name)]
    except subprocess.TimeoutExpired as late:
        yield [dict(result(False, "%s gives no answer within %d s" % (late.cmd[0], late.timeout)), check=name)]
    except Exception as error:
        yield [dict(unknown("%s: %s" % (type(error).__name__, error)), check=name)]


def results_of(processes: List[Process]) -> Iterator[List[Result]]:
    """The results of checks as they come, or none after BEAT_S."""
    while processes:
        soonest = min(one.end for one in processes) - time.monotonic()
        ready = select.select([one.pipe for one in processes], [], [], min(BEAT_S, max(0.0, soonest)))[0]
        late = [one for one in processes if one.pipe in ready or time.monotonic() >= one.end]
        yield [found for one in late for found in one.read(one.pipe in ready)]
        processes = [one for one in processes if one.pipe >= 0]


def start(checks: Checks) -> List[Process]:
    """Start checks."""
    return [Process(name, check) for name, check in checks.items()]


def host_checks(args: argparse.Namespace) -> Checks:
    """What is checked on every node."""
    reached = partial(host.reached, args.master, args.port, args.nodes)
    checks = {
        "memory": Check(host.memory),
        "shm": Check(host.shared_memory),
        "infiniband": Check(host.infiniband),
        PORT: Check(reached, host.REACH_S, host.REACH_S + 0.5),
    }
    if args.nodes > 1:  # compared with the other nodes
        checks["cpu"] = Check(host.cpu_speed)
    for name in filter(None, args.interfaces.split(":")):
        checks["interface " + name] = Check(partial(host.interface, name))
    for path in args.path:
        checks["path " + path] = Check(partial(host.readable, path))
    for path in sorted({os.path.normpath(os.path.expandvars(path)) for path in args.writable}):
        checks["writing to " + path] = Check(partial(host.writable, path))
    if args.workdir:
        checks["working folder"] = Check(partial(host.enterable, args.workdir))
    if args.peer:
        peers = partial(ssh.ports_between, args.node, args.peer, args.port)
        checks[PORTS] = Check(peers, ssh.LISTEN_S + 1, ssh.REACH_S + ssh.TRY_S + 1.5)
    if args.peer and args.workdir:  # without Slurm, nobody else keeps the nodes the same
        runs = os.path.dirname(os.path.dirname(os.path.dirname(args.attempt)))
        checks["code"] = Check(partial(ssh.code, os.environ.get("HPC_LAUNCH_CODE") or args.workdir, runs))
    return checks


def software_checks(args: argparse.Namespace) -> Checks:
    """What the training's own Python checks, in the image if the job has one."""
    wait = SLOW_S * (2 if args.image else 1)
    checks = {}
    if args.python:
        checks["software"] = Check(partial(host.software, args.python, args.script), host.SOFTWARE_S + 1, wait)
        if args.gpus:
            checks["gpu compute"] = Check(partial(gpus.compute, args.python, args.gpus), gpus.COMPUTE_S + 1, wait)
        if args.full:
            imported = args.measuring.imported if args.measuring else partial(unknown, "")
            checks[full.IMPORT] = Check(imported, gpus.COMPUTE_S + 1, wait)
    return checks


def gpu_checks(args: argparse.Namespace) -> Checks:
    """What is checked on a node with GPUs."""
    limit = gpus.SMI_S + 1
    if args.gpu_vendor in gpus.VENDORS:
        return {"gpus": Check(partial(gpus.by_files, args.gpus, args.gpu_vendor))}
    if not shutil.which("nvidia-smi"):
        return {"gpus": Check(partial(unknown, "no nvidia-smi"))}
    held = partial(gpus.nvidia_processes, args.gpus)
    if args.gpus_of_others:
        held = partial(unknown, "other runs may use the GPUs")
    return {
        "gpus": Check(partial(gpus.nvidia, args.gpus, args.gpu_model), limit),
        "gpu state": Check(gpus.nvidia_state, 4 * limit),
        "gpu links": Check(partial(gpus.nvidia_links, args.gpus), limit),
        "gpu processes": Check(held, gpus.CLEAR_S + 2 * limit, gpus.CLEAR_S + SLOW_S),
    }


class Report:
    """Where this node reports: its file in the attempt's folder, or what it prints."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.node, self.path = args.node, os.path.join(args.attempt, host.FOLDER, args.node + ".jsonl")
        self.shared = appears(self.path, FILE_S if args.shared else COPY_S)
        """Whether this node sees the folder of the first one."""
        self.prints = args.inside or not self.shared

    def send(self, **words: Any) -> None:
        """Report a line. Only what is in a file that is closed is on the file server."""
        line = json.dumps(dict(words, node=self.node)) + "\n"
        if self.prints:
            print(line, end="", flush=True)
            return
        with open(self.path, "a") as file:
            file.write(line)


def into_image(command: str) -> Iterator[List[Result]]:
    """Start the part inside the image, and pass its results on."""
    words = ["bash", command, "-I", os.path.abspath(sys.argv[0]), *sys.argv[1:], "--inside"]
    said, started = "no message", False
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout or ():
            text = line.decode("utf-8", "replace").strip()
            started = started or text == STARTED
            if started and text.startswith("{"):
                yield json.loads(text)["results"]
            elif text:
                said = text
                print(text, flush=True)
    if not started:
        yield [dict(result(False, "the image does not start: %s" % said), check=IMAGE)]


def main(words: List[str]) -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt")
    parser.add_argument("node")
    parser.add_argument("--master", default="127.0.0.1")
    parser.add_argument("--gpu-vendor", default="nvidia")
    for name in ("gpu-model", "interfaces", "workdir", "python", "script", "fabric"):
        parser.add_argument("--" + name, default="")
    for name in ("port", "nodes", "gpus", "tasks"):
        parser.add_argument("--" + name, type=int, default=1 if name == "nodes" else 0)
    for name in ("peer", "path", "writable"):
        parser.add_argument("--" + name, action="append", default=[])
    for name in ("full", "shared", "gpus-of-others", "image", "inside"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--within", default="", help="a script that starts Python in the image")
    args = parser.parse_known_args(words)[0]  # some expectations are the judge's
    args.python, args.script = os.path.expandvars(args.python), os.path.expandvars(args.script)
    args.measuring = None
    if args.full and args.python and args.inside == args.image:
        args.measuring = full.Measuring(args.python, args.gpus, args.tasks, args.fabric)
    (inside if args.inside else outside)(args)
    if args.measuring:
        args.measuring.close()


def outside(args: argparse.Namespace) -> None:
    """Check this node and report; start the part inside the image, if any."""
    checks = dict(host_checks(args), **(gpu_checks(args) if args.gpus else {}))
    owed = {name: check.wait for name, check in {**checks, **software_checks(args)}.items()}
    if args.image:  # the part inside reports the software
        owed[IMAGE] = 2 * SLOW_S
    else:
        checks.update(software_checks(args))
    if args.within:
        checks[IMAGE] = Check(partial(into_image, args.within), full.STEPS * ORDER_S)
    processes = start(checks)
    report, run = Report(args), os.path.dirname(os.path.dirname(args.attempt))
    results = [dict(result(True, sys.executable), check="start")]
    if args.shared:
        text = run if report.shared else "%s is not the folder of the first node" % run
        results.append(dict(result(report.shared, text), check="shared folder " + run))
    if args.full and not (args.python and report.shared):
        text = "the run folder is not shared" if args.python else "no PyTorch outside the image"
        results.append(dict(unknown(text), check=full.IMPORT))
    # The names first: the judge knows what a node that freezes still owes.
    report.send(begun=owed, results=results)
    for found in results_of(processes):
        report.send(results=found)
    if args.within:
        report.send(part=INSIDE, done=True)
    measure(args, report)


def inside(args: argparse.Namespace) -> None:
    """Check the software in the image and print the results."""
    processes, report = start(software_checks(args)), Report(args)
    report.send(results=[dict(result(True, "the image starts"), check=IMAGE)])
    for found in results_of(processes):
        report.send(results=found)
    measure(args, report)


def measure(args: argparse.Namespace, report: Report) -> None:
    """Measure what the judge asks for, until it has no more steps (`preflight: full`)."""
    for number in range(full.STEPS + 1 if args.measuring and report.shared else 0):
        path = order_file(args.attempt, number)
        if not appears(path, ORDER_S):
            return
        with open(path) as file:
            order = json.load(file)
        if not order["groups"]:
            return
        if any(args.node in names for names in order["groups"]):
            step = Check(partial(args.measuring.do, order, args.node), order["limit"] + full.SPARE_S)
            for found in results_of(start({order["task"]: step})):
                report.send(results=found)
