"""What the node check costs: `python -m benchmarks.node_check` writes node_check.md beside this file. Needs root.

Two measurements: a job on four nodes of the test cluster with and without the quick check, and the first node's part
with 4,096 simulated nodes that connect over the loopback and send what healthy nodes send.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import resource
import selectors
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from hpc_launch.agent.judge import KEY
from tests.agent.program import program
from tests.cluster import Cluster
from tests.slurm.user import User

PAGE = Path(__file__).with_name("node_check.md")
PORT = 29_321
CHECKS = ("memory", "shm", "cpu", "infiniband", "host name", "gpus", "gpu state", "gpu links", "gpu processes")
LATER = ("software", "gpu compute")
ROUNDS = 5
GROWTH = 4096, 1024, 64
TRAINING = "sleep 5"


class Node:
    """A simulated node: greets, sends its bytes, then four signed lines."""

    def __init__(self, number: int) -> None:
        self.name = f"node{number:05d}"
        self.socket = socket.create_connection(("127.0.0.1", PORT), timeout=60)
        self.sent, self.messages = 0, 0

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)
        self.sent += len(data)
        self.messages += 1

    def line(self) -> bytes:
        data = b""
        while not data.endswith(b"\n"):
            data += self.socket.recv(1 << 16)
        return data

    def report(self, key: bytes, nonce: bytes) -> None:
        def results(*checks: str) -> list[dict[str, object]]:
            return [{"check": check, "ok": True, "text": f"{check} passed", "value": 4} for check in checks]

        lines: list[dict[str, object]] = [
            {"begun": [*CHECKS, *LATER], "results": results("rendezvous port", "network"), "clock_ahead_s": 0.0},
            {"results": results(*CHECKS)},
            {"results": results(*LATER)},
            {"done": True, "seconds": 1.0},
        ]
        for words in lines:
            data = json.dumps({**words, "node": self.name}).encode()
            self.send(hmac.new(key, nonce + data, "sha256").hexdigest().encode() + data + b"\n")


def simulate(count: int) -> tuple[float, float, int, float]:
    """Seconds and CPU seconds of the first node's part, messages, and MiB received, for `count` nodes at once."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "agent").mkdir()
        names = [f"--node=node{number:05d}" for number in range(count)]
        words = [*program("judge"), folder, "--job=1", f"--port={PORT}", *names]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", PORT)).close()
                    break
                except ConnectionRefusedError:
                    time.sleep(0.02)
            began = time.monotonic()
            nodes = [Node(number) for number in range(count)]
            key = (Path(folder) / "agent" / KEY).read_bytes()
            play(nodes, key)
            text = process.communicate()[1]
            seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode != 0:
            raise RuntimeError(text)
        for node in nodes:
            node.socket.close()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, sum(node.messages for node in nodes), sum(node.sent for node in nodes) / 2**20


def play(nodes: list[Node], key: bytes) -> None:
    """Let all nodes talk at once: each goes on when it has its answer."""
    selector = selectors.DefaultSelector()
    nonces: dict[str, bytes] = {}
    for node in nodes:
        node.send(b"hello " + os.urandom(16).hex().encode() + b"\n")
        selector.register(node.socket, selectors.EVENT_READ, node)
    while selector.get_map():
        for entry, _ in selector.select(60):
            node = entry.data
            answer = node.line()
            if node.name not in nonces:
                hello = json.loads(answer[64:])  # behind the signature
                nonces[node.name] = hello["nonce"].encode()
                node.send(b"\0" * hello["bytes"])
            else:
                selector.unregister(node.socket)
                node.report(key, nonces[node.name])
                node.socket.shutdown(socket.SHUT_WR)


def jobs() -> tuple[list[float], list[float], list[float]]:
    """Seconds of the same job without and with the check, in turn, and the seconds that the check itself reports."""
    plain: list[float] = []
    checked: list[float] = []
    own: list[float] = []
    with Cluster.start() as cluster:
        for number in range(2 * ROUNDS):
            user = User(cluster, cluster.user_folder("bench-"))
            preflight = "quick" if number % 2 else "off"
            run = user.submit(
                f'name: cost\npreflight: "{preflight}"\nlauncher: srun\nnodes: 4\ncpus_per_node: 1\n'
                f"command: [sh, -c, '{TRAINING}']\n"
            )
            user.until(run["run"], "COMPLETED")
            words = ["sacct", "-nX", "-j", run["job_id"], "-o", "elapsedraw"]
            elapsed = cluster.run(words, user="root").stdout.strip()
            folder = Path(run["folder"]) / "attempts" / "001"
            (checked if number % 2 else plain).append(float(elapsed))
            if number % 2:
                own.append(json.loads((folder / "node-check.json").read_text())["seconds"])
    return plain, checked, own


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    rows: list[str] = []
    for count in GROWTH:
        seconds, cpu, messages, received = simulate(count)
        rows.append(f"| {count} | {seconds:.1f} s | {cpu:.1f} s | {messages} | {received:.0f} MiB |")
    plain, checked, own = jobs()
    with_check, without = statistics.mean(checked), statistics.mean(plain)
    table = "\n".join(rows)
    PAGE.write_text(f"""# Cost of the node check

Generated by `python -m benchmarks.node_check`.

**Four nodes of the test cluster**, which share the cores of one busy machine. A job that sleeps for 5 s takes
{with_check:.1f} s with `preflight: quick` and {without:.1f} s without (mean of {ROUNDS} runs each, in turn): a ratio of
{with_check / without:.2f}. The difference does not grow with the length of the training. The check itself takes
{statistics.median(own):.1f} s (median), of which 0.6 s measure the CPU.

**Simulated nodes**, all at once over the loopback: what the first node needs to receive and judge the reports, without
the time that the checks themselves take. Each node sends 6 messages and receives 2; no node talks to another than the
first. The number of bytes that measure the links is limited to 256 MiB in total.

| nodes | elapsed | CPU of the first node | messages received | received |
|---|---|---|---|---|
{table}
""")
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
