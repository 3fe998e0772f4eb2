"""The node check on one node: what a training needs from it, measured before the training starts.

    python3 -I hpc_launch_check.py ATTEMPT_DIR NODE [EXPECTATION...]

Self-contained: standard library of Python 3.6 or later, copied into the run folder and run by the host's `python3` on
every node. Each check is a process of its own with a time limit, so that a driver or a mount that hangs cannot block
the others. The results go to hpc_launch_judge.py on the first node, over the connection that the training's rendezvous
will use; a node that cannot connect leaves them in ATTEMPT_DIR/agent/check-NODE.json.

hpc_launch_check_host.py and hpc_launch_check_gpus.py hold the checks; the former describes their results.
"""

import argparse
import hmac
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python -I leaves it out

from hpc_launch_check_gpus import (
    CLEAR_S,
    COMPUTE_S,
    SMI_S,
    amd,
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
    Result,
    cpu_speed,
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

CONNECT_S = 10.0
KEY = "check-key"
"""A file that only the user can read: other users of the machine must not report for a node."""
Check = Callable[[], Result]


def run_all(checks: Dict[str, Tuple[Check, float]]) -> List[Result]:
    """Run each check in a process of its own; one that exceeds its time fails."""
    running: Dict[int, Tuple[str, int, float, List[bytes]]] = {}
    for name, (check, limit) in checks.items():
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.close(read)
            try:
                try:
                    outcome = check()
                except subprocess.TimeoutExpired as late:
                    outcome = result(False, "%s gives no answer within %d s" % (late.cmd[0], late.timeout))
                except Exception as error:
                    outcome = unknown("%s: %s" % (type(error).__name__, error))
                os.write(write, json.dumps(outcome).encode()[:60000])
            finally:
                os._exit(0)
        os.close(write)
        running[read] = (name, child, time.monotonic() + limit, [])
    found: List[Result] = []
    while running:
        soonest = min(entry[2] for entry in running.values())
        ready = select.select(list(running), [], [], max(0.0, soonest - time.monotonic()))[0]
        for pipe in list(running):
            name, child, end, parts = running[pipe]
            data = os.read(pipe, 1 << 16) if pipe in ready else b""
            if data:
                parts.append(data)
            elif pipe in ready or time.monotonic() >= end:
                found.append(finished(name, child, b"".join(parts), late=pipe not in ready))
                os.close(pipe)
                del running[pipe]
    return found


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
        found = result(False, "gives no answer") if late else unknown("the check itself ended early")
    found["check"] = name
    return found


def checks_of(args: argparse.Namespace, hello: Dict[str, str]) -> Dict[str, Tuple[Check, float]]:
    """What is checked on this node, with the time limit of each."""
    checks: Dict[str, Tuple[Check, float]] = {
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
    for path in args.writable:
        checks["writing to " + path] = (partial(writable, path, args.node), CHECK_S)
    for path, token in hello.items():
        folder = os.path.dirname(path)
        checks["shared folder " + folder] = (partial(shared, path, token), CHECK_S)
    if args.python:
        checks["software"] = (partial(software, args.python, args.script), SOFTWARE_S + 1)
    if args.gpus:
        checks["kernel log"] = (kernel_log, CHECK_S + 1)
        if args.gpu_vendor == "amd":
            checks["gpus"] = (partial(amd, args.gpus), CHECK_S)
        elif args.gpu_vendor == "intel":
            checks["gpus"] = (partial(intel, args.gpus), CHECK_S)
        elif shutil.which("nvidia-smi"):
            checks["gpus"] = (partial(nvidia, args.gpus, args.gpu_model), SMI_S + 1)
            checks["gpu state"] = (nvidia_state, 3 * SMI_S + 1)
            checks["gpu links"] = (nvidia_links, SMI_S + 1)
            checks["gpu processes"] = (nvidia_processes, CLEAR_S + SMI_S + 1)
        else:
            checks["gpus"] = (partial(unknown, "no nvidia-smi"), CHECK_S)
        if args.python:
            checks["gpu compute"] = (partial(compute, args.python, args.gpus), COMPUTE_S + 1)
    return checks


def connect(master: str, port: int) -> Tuple[socket.socket, float, Dict[str, Any]]:
    """A connection to the judge, how far its clock is ahead (seconds), and what it says. Raises OSError."""
    end = time.monotonic() + CONNECT_S
    peer: Optional[socket.socket] = None
    while peer is None:
        try:
            peer = socket.create_connection((master, port), timeout=CHECK_S)
        except ConnectionRefusedError:  # the judge may not listen yet
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    peer.settimeout(CONNECT_S)
    sent = time.time()
    peer.sendall(b"hello\n")
    line = b""
    while not line.endswith(b"\n"):
        data = peer.recv(1 << 16)
        if not data:
            raise OSError("%s:%d closed the connection" % (master, port))
        line += data
    words = json.loads(line.decode())
    return peer, words["time"] - (sent + time.time()) / 2, words


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
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--writable", action="append", default=[])
    parser.add_argument("--python", default="")
    parser.add_argument("--script", default="")
    args = parser.parse_known_args()[0]  # some expectations are the judge's
    args.python, args.script = os.path.expandvars(args.python), os.path.expandvars(args.script)
    began = time.monotonic()
    record: Dict[str, Any] = {"node": args.node, "clock_ahead_s": None}
    peer: Optional[socket.socket] = None
    files: Dict[str, str] = {}
    key = nonce = b""
    try:
        peer, ahead, hello = connect(args.master, args.port)
        with open(os.path.join(args.attempt, "agent", KEY), "rb") as file:
            key = file.read()
        nonce, files = hello["nonce"].encode(), hello["files"]
    except (OSError, ValueError, KeyError) as error:
        text = "cannot connect to %s port %d: %s" % (args.master, args.port, error)
        port = result(False, text)
    else:
        port = result(True, "%s port %d" % (args.master, args.port))
        record["clock_ahead_s"] = -ahead
    port["check"] = "rendezvous port"
    record["results"] = [port, *run_all(checks_of(args, files))]
    record["seconds"] = round(time.monotonic() - began, 2)
    data = json.dumps(record).encode()
    try:
        if peer is None:
            raise OSError("no connection")
        peer.sendall(hmac.new(key, nonce + data, "sha256").hexdigest().encode() + data)
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)  # the judge has it
        peer.close()
    except OSError:
        path = os.path.join(args.attempt, "agent", "check-%s.json" % args.node)
        with open(path + ".new", "wb") as file:
            file.write(data)
        os.rename(path + ".new", path)


if __name__ == "__main__":
    main()
