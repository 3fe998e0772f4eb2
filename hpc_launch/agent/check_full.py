"""The steps of `preflight: full` on one node, for check.py: measurements that the judge asks for.

The judge (check_rounds.py) sends a task when all nodes wait for one: a measurement of each node, then an
all-reduce with one other node at a time, then one with all. measure.py carries it out with the training's
own PyTorch. Standard library of Python 3.6 or later.
"""

import json
import os
import select
import signal
import socket
import subprocess
import time
from typing import Any, Dict, List, Optional, Tuple

from hpc_launch.agent import program
from hpc_launch.agent.check_gpus import COMPUTE_S
from hpc_launch.agent.check_host import Result, result, unknown

IMPORT = "measurements"
"""The check that PyTorch could be imported: without it, a node takes no part in the measurements."""
NETWORK = "nccl network"
SPARE_S = 2.0
"""How much longer than its limit a measurement may take until the program itself counts as hanging."""
Ranks = List[Dict[str, Any]]


class Measuring:
    """The program that measures."""

    def __init__(self, python: str, gpus: int, tasks: int, fabric: str) -> None:
        self.gpus, self.tasks, self.fabric = gpus, max(1, tasks), fabric
        self.data = b""
        self.process: Optional[subprocess.Popen] = None  # type: ignore[type-arg] # Python 3.6
        try:
            if python:
                self.process = subprocess.Popen(
                    [python, *program("measure", isolated=False)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
        except OSError:
            pass

    def imported(self) -> Result:
        """Whether PyTorch could be imported: the first line. Only this reads it, in the process of a check."""
        if self.process is None:
            return unknown("no PyTorch outside the image")
        words = self.line(COMPUTE_S)
        if words is None:
            return unknown("PyTorch was not imported within %d s" % COMPUTE_S)
        if "torch" not in words:
            return unknown("no PyTorch: %s" % words.get("error"))
        return result(True, "PyTorch %s" % words["torch"])

    def line(self, limit: float) -> Optional[Dict[str, Any]]:
        """The next line of the program; None if there is none in time."""
        if self.process is None or self.process.stdout is None:
            return None
        pipe, end = self.process.stdout.fileno(), time.monotonic() + limit
        while b"\n" not in self.data:
            if not select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            data = os.read(pipe, 1 << 16)
            if not data:
                return None
            self.data += data
        line, _, self.data = self.data.partition(b"\n")
        words: Dict[str, Any] = json.loads(line.decode())
        return words

    def ask(self, request: Dict[str, Any]) -> Ranks:
        """What each process of a request has reported; nothing if the program gives no answer."""
        words = None
        try:
            if self.process is not None and self.process.stdin is not None:
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                self.process.stdin.flush()
                words = self.line(request["limit"] + SPARE_S)
        except (OSError, ValueError):
            pass
        ranks: Ranks = words["ranks"] if words else [{}]
        return ranks

    def do(self, task: Dict[str, Any], address: str) -> List[Result]:
        """Carry out a task of the judge."""
        alone = task["task"] == "measurement"
        processes = self.gpus or (self.tasks if alone else 1)
        request = {
            "task": task["task"],
            "gpus": self.gpus,
            "processes": processes,
            "first": 0 if alone else task["number"] * processes,
            "world": processes * (1 if alone else task["nodes"]),
            "address": "127.0.0.1" if alone else task["address"],
            "port": free_port() if alone else task["port"],
            "own": "127.0.0.1" if alone or not address else address,
            "limit": task["limit"],
        }
        ranks = self.ask(request)
        if alone:
            return [*self.measured(ranks, task["limit"]), dict(result(True, "done"), check=task["task"])]
        found = self.value(ranks, "all_reduce", task["limit"])
        found["value"] = min(found["value"]) if found["ok"] else None
        if found["ok"] is False and task["nodes"] > 2:
            found["text"] = "%s: %s" % (task["task"], found["text"])
        return [dict(found, check=task["task"]), *self.network(ranks)]

    def measured(self, ranks: Ranks, limit: float) -> List[Result]:
        """The results of a measurement: after the first that fails, what follows was not measured."""
        kind, results, failed = "gpu" if self.gpus else "cpu", [], False
        names = [("matrix product", "matrix"), ("memory bandwidth", "memory")]
        names += [("host bandwidth", "host")] if self.gpus else []
        names += [("all-reduce", "all_reduce")] if len(ranks) > 1 else []
        for name, key in names:
            found = unknown("an earlier measurement failed") if failed else self.value(ranks, key, limit)
            failed = failed or not found["ok"]
            results.append(dict(found, check="%s %s" % (kind, name)))
        return results

    def value(self, ranks: Ranks, key: str, limit: float) -> Result:
        """The values of all processes."""
        for number, words in enumerate(ranks):
            if words.get("unavailable"):
                return unknown("PyTorch sees no GPU")
            if key not in words and words.get("error"):  # before those who wait for this process
                return result(False, "%s: %s" % (self.name(number), words["error"]))
        for number, words in enumerate(ranks):
            if key not in words:
                during = " (%s)" % words["during"] if words.get("during") else ""
                return result(False, "%s: no answer within %d s%s" % (self.name(number), limit, during))
        return result(True, ", ".join("%g" % words[key] for words in ranks), [words[key] for words in ranks])

    def name(self, number: int) -> str:
        return "%s %d" % ("GPU" if self.gpus else "process", number)

    def network(self, ranks: Ranks) -> List[Result]:
        """Which network NCCL chose between nodes: a fallback to TCP raises no error."""
        names = sorted({str(words["network"]) for words in ranks if words.get("network")})
        if not self.gpus or not names:
            return [dict(unknown("NCCL names no network"), check=NETWORK)] if self.gpus else []
        wrong = self.fabric and "Socket" in names
        text = "NCCL uses %s%s" % (", ".join(names), ", although the site has %s" % self.fabric if wrong else "")
        return [dict(result(not wrong, text), check=NETWORK)]

    def close(self) -> None:
        """End the program and its processes."""
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(SPARE_S)
        except subprocess.TimeoutExpired:  # a driver holds it
            pass


def place_of(own: str, master: str, port: int) -> Tuple[str, int]:
    """Where the other nodes reach a process of this one: the address from which it reaches the judge, and a port."""
    if not own or own.startswith(("127.", "::1", "fe80:")):  # the first node itself, or no address for others
        try:
            own = socket.gethostbyname(master)
        except OSError:
            own = master
    return "[%s]" % own if ":" in own else own, free_port(port)


def free_port(other: int = 0) -> int:
    """A free port, which is not the one of the rendezvous."""
    while True:
        with socket.socket() as one:
            one.bind(("", 0))
            found = int(one.getsockname()[1])
        if found != other:
            return found
