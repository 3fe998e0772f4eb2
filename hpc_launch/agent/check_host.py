"""Checks of a node's memory, disks, network and software, for check.py.

A result is {"ok", "text", "value"}. `ok` is null where the check was not possible (no tool, no permission): it is then
neither passed nor failed. `value` is what the judge compares between nodes.
"""

import contextlib
import glob
import json
import os
import socket
import subprocess
import time
from typing import Any, Dict, List, Optional

from hpc_launch.agent import WITHOUT_CURRENT_FOLDER
from hpc_launch.agent.describe_host import answer, memory_mib
from hpc_launch.agent.folders import LOCAL, file_system
from hpc_launch.agent.job_processes import text_of

CHECK_S = 4.0
SOFTWARE_S = 15.0
SHM = "/dev/shm"  # noqa: S108 - tested for room
SHM_MIB = 64
BUSY = 0.6
"""Where a process gets a smaller share of a CPU, its speed cannot be compared."""
FOLDER = os.path.join("agent", "check")
"""Where the nodes report, in the attempt's folder."""
IMAGE = "image"
"""The check that the image starts."""
INSIDE = "check-image"
"""What marks the end of the part inside the image."""
Result = Dict[str, Any]


def result(ok: Optional[bool], text: str, value: Any = None) -> Result:
    """The result of a check."""
    return {"ok": ok, "text": text, "value": value}


def unknown(reason: str) -> Result:
    """The result of a check that was not possible."""
    return result(None, reason)


def memory() -> Result:
    """Memory of the node in MiB: compared with that of the others."""
    total = memory_mib()[1]
    return result(True, "%d MiB" % total, total) if total else unknown("no /proc/meminfo")


def shared_memory() -> Result:
    """Room in /dev/shm, through which data loaders and NCCL communicate."""
    state = os.statvfs(SHM)
    free = state.f_bavail * state.f_frsize // 2**20
    if free < SHM_MIB:
        return result(False, "%s has %d MiB left" % (SHM, free), free)
    return result(True, "%d MiB in %s" % (free, SHM), free)


def cpu_speed() -> Result:
    """Loops per second of CPU time, compared with those of the other nodes; the best of the rounds counts.

    Two rounds in a row must agree: an idle CPU has to raise its clock. CPU time, because what else runs must not count.
    Where others leave little of a CPU, nothing is said: what they do to caches and clocks is not this node's speed.
    """
    speeds, began, used = [0.0, 1.0], time.perf_counter(), time.process_time()
    while len(speeds) < 8 and abs(speeds[-1] - speeds[-2]) > 0.1 * speeds[-1]:
        start, end, loops = time.process_time(), time.perf_counter() + 0.5, 0
        while time.process_time() - start < 0.05 and time.perf_counter() < end:
            for _ in range(1000):
                pass
            loops += 1
        speeds.append(loops / (time.process_time() - start))
    share = (time.process_time() - used) / (time.perf_counter() - began)
    if share < BUSY:
        return result(True, "not measured: others use the CPU", None)
    return result(True, "%.0f loops/s" % max(speeds), max(speeds))


def enterable(path: str) -> Result:
    """Whether the working folder of the training exists on this node and can be entered."""
    try:
        os.chdir(path)
    except OSError as error:
        return result(False, "the working folder %s: %s" % (path, error.strerror))
    return result(True, path)


def writable(path: str) -> Result:
    """Whether 64 KiB can be written: not where a disk is full, a quota is used up or a mount is read-only."""
    while not os.path.isdir(path) and os.path.dirname(path) != path:  # the training may create it
        path = os.path.dirname(path)
    name = os.path.join(path, ".hpc-launch-check-" + os.urandom(16).hex())  # nobody can create it in advance
    try:
        with open(name, "xb") as file:
            try:
                file.write(b"\0" * (1 << 16))
                file.flush()
                os.fsync(file.fileno())
            finally:
                remove(name)
    except OSError as error:
        return result(False, "%s: cannot write: %s" % (path, error.strerror))
    return result(True, path)


def remove(path: str) -> None:
    """Remove a file, which another user of the folder may have removed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def order_file(attempt: str, step: int) -> str:
    """Where the judge asks the nodes to measure something (`preflight: full`)."""
    return os.path.join(attempt, FOLDER, "step-%d.json" % step)


def appears(path: str, seconds: float) -> bool:
    """Whether a file that another node has written appears within this time."""
    end = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
        with contextlib.suppress(OSError):
            os.scandir(os.path.dirname(path)).close()  # makes the client of a file server look again
    return True


def interface(name: str) -> Result:
    """Whether a network interface is up; its speed is compared with that of the other nodes."""
    found = [path for path in glob.glob("/sys/class/net/*") if os.path.basename(path).startswith(name)]
    if not found:
        return result(False, "no interface %s" % name)
    up = [path for path in found if text_of(path + "/operstate").strip() in ("up", "unknown")]
    if not up:
        return result(False, "interface %s is down" % name)
    speeds = [text_of(path + "/speed").strip() for path in up]
    return result(True, name, sum(int(speed) for speed in speeds if speed.isdigit()) or None)


def infiniband() -> Result:
    """The number of active ports and their rates, compared with those of the other nodes."""
    ports = glob.glob("/sys/class/infiniband/*/ports/*")
    if not ports:
        return unknown("no InfiniBand or RoCE adapter")
    active = [port for port in ports if "ACTIVE" in text_of(port + "/state")]
    rates = [float(text_of(port + "/rate").split()[0]) for port in active if text_of(port + "/rate").split()]
    return result(True, "%d active ports, %g Gb/s" % (len(active), sum(rates)), sum(rates))


CONNECT_S = 4.0
REACH_S = 2 * CONNECT_S + 0.5
SENT, SENT_BY_ALL = 1 << 18, 1 << 28
"""Bytes that each node sends to measure its link, and the most that the first node receives in total."""
PORT, NETWORK, CLOCK = "rendezvous port", "network", "clock"
ANSWER = b"hpc-launch "
"""What the judge answers to a node that has connected, followed by its time."""


def reached(master: str, port: int, nodes: int) -> List[Result]:
    """Connect to the first node at the port of the rendezvous and send it data: the port, the network, the clock.

    The value of the first is where the others reach this node. Nothing that arrives is believed, except for the time.
    """
    place, size = "%s port %d" % (master, port), min(SENT, SENT_BY_ALL // nodes)
    end = time.monotonic() + CONNECT_S
    while True:
        try:
            with socket.create_connection((master, port), timeout=CONNECT_S) as peer:
                began, sent = time.monotonic(), time.time()
                peer.sendall(b"\0" * size)
                peer.shutdown(socket.SHUT_WR)
                line = peer.makefile("rb").readline(100)
                seconds, own = time.monotonic() - began, str(peer.getsockname()[0])
            if not line.startswith(ANSWER):
                raise OSError("what answers is not the node check")
            ahead = (sent + time.time()) / 2 - float(line[len(ANSWER) :])
        except (OSError, ValueError) as error:
            if isinstance(error, (ConnectionRefusedError, ConnectionResetError)) and time.monotonic() < end:
                time.sleep(0.05)  # the judge may not listen yet
                continue
            failed = result(False, "cannot reach %s%s: %s" % (place, addresses_of(master), error))
            return [dict(failed, check=PORT), dict(unknown("no connection"), check=NETWORK)]
        link = "%d KiB to %s in %.3f s" % (size // 1024, place, seconds)
        return [
            dict(result(True, place, master if own.startswith(("127.", "::1", "fe80:")) else own), check=PORT),
            dict(result(True, link, seconds), check=NETWORK),
            dict(result(True, "", ahead), check=CLOCK),
        ]


def addresses_of(name: str) -> str:
    """` (127.0.0.1)`: a node's name may lead to a wrong one, such as the node itself; '' if it has none."""
    try:
        return " (%s)" % ", ".join(sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}))
    except OSError:
        return ""


SOFTWARE = (
    WITHOUT_CURRENT_FOLDER
    + """
import ast, glob, importlib.util, itertools, json, os, sys
found, missing = {"python": "%d.%d.%d" % sys.version_info[:3]}, []
# importlib.metadata reads the same files, and takes longer to import than the rest of the check
for folder, package in itertools.product(sys.path, ("torch", "deepspeed")):
    for file in glob.glob("%s/%s[-.]*-info/[MP][EK][TG]*" % (glob.escape(folder), package)):
        with open(file, encoding="utf-8", errors="replace") as stream: text = stream.read()
        found.setdefault(package, text.partition("\\nVersion: ")[2].split("\\n")[0])
script = sys.argv[1] if len(sys.argv) > 1 else ""
if script.endswith(".py"):
    sys.path.insert(0, os.path.dirname(script))
    try: body = ast.parse(open(script, "rb").read()).body
    except (OSError, SyntaxError, ValueError): body = []
    for line in body:
        names = [one.name for one in line.names] if isinstance(line, ast.Import) else \
            [line.module] if isinstance(line, ast.ImportFrom) and not line.level and line.module else []
        for name in names:
            if importlib.util.find_spec(name.split(".")[0]) is None: missing.append(name.split(".")[0])
print(json.dumps([found, sorted(set(missing))]))
"""
)


def software(python: str, script: str) -> Result:
    """Versions of the training's Python and PyTorch, and modules that the script imports and that are missing."""
    try:
        code, text = answer([python, "-c", SOFTWARE, *([script] if script else [])], SOFTWARE_S)
    except subprocess.TimeoutExpired:
        return unknown("%s did not answer within %d s" % (python, SOFTWARE_S))
    try:
        versions, missing = json.loads(text.strip().split("\n")[-1])
    except ValueError:
        return result(False, "%s exits with %d: %s" % (python, code, text.strip()[-200:]))
    if missing:
        return result(False, "%s finds no module %s" % (python, ", ".join(missing)), versions)
    return result(True, ", ".join("%s %s" % pair for pair in sorted(versions.items())), versions)


MISSING = "missing"


def readable(path: str) -> Result:
    """Whether a path exists; a file server that is down never answers. The value says where it is."""
    try:
        if os.path.isdir(path):
            os.scandir(path).close()
        os.stat(path)
    except OSError as error:
        value = MISSING if isinstance(error, FileNotFoundError) else None
        return result(False, "%s: %s" % (path, error.strerror), value)
    return result(True, path, "local" if file_system(path) in LOCAL else "shared")
