"""What the node check costs: `python -m benchmarks.node_check` writes node_check.md beside this file. Needs root.

Two measurements: a job on four nodes of the test cluster with and without the quick check, and the first node's part
with 4,096 simulated nodes that connect over the loopback and report what healthy nodes report.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hpc_launch.agent.check_send import COMMON, FOLDER, report_file
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


def results(*checks: str) -> list[dict[str, object]]:
    """Results of checks that a node has passed."""
    return [{"check": check, "ok": True, "text": f"{check} passed", "value": 4} for check in checks]


def report(folder: Path, number: int) -> tuple[int, int]:
    """Let a simulated node connect and report; returns the lines and bytes that the first node receives."""
    name = f"node{number:05d}"
    common = json.loads((folder / FOLDER / COMMON).read_text())
    with socket.create_connection(("127.0.0.1", PORT), timeout=60) as peer:
        peer.sendall(b"\0" * common["bytes"])
        peer.shutdown(socket.SHUT_WR)
        peer.recv(100)
    lines: list[dict[str, object]] = [
        {"begun": [*CHECKS, *LATER], "results": results("rendezvous port", "network"), "clock_ahead_s": 0.0},
        {"results": results(*CHECKS)},
        {"results": results(*LATER)},
        {"done": True, "seconds": 1.0},
    ]
    sent = int(common["bytes"])
    with open(report_file(str(folder), name), "ab", buffering=0) as file:
        for words in lines:
            sent += file.write(json.dumps({**words, "node": name}).encode() + b"\n")
    return len(lines), sent


def simulate(count: int) -> tuple[float, float, int, float]:
    """Seconds and CPU seconds of the first node's part, lines, and MiB received, for `count` nodes."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        (folder / "agent").mkdir()
        names = [f"--node=node{number:05d}" for number in range(count)]
        words = [*program("judge"), parent, "--job=1", f"--port={PORT}", *names]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", PORT)).close()
                    break
                except ConnectionRefusedError:
                    time.sleep(0.02)
            began = time.monotonic()
            with ThreadPoolExecutor(64) as pool:
                received = list(pool.map(partial(report, folder), range(count)))
            text = process.communicate()[1]
            seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode != 0:
            raise RuntimeError(text)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, sum(lines for lines, _ in received), sum(size for _, size in received) / 2**20


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

**Simulated nodes**, 64 at a time over the loopback: what the first node needs to read and judge the reports, without
the time that the checks themselves take. Each node writes 4 lines and connects once, to the first node. The number of
bytes that measure the links is limited to 256 MiB in total.

| nodes | elapsed | CPU of the first node | lines | received |
|---|---|---|---|---|
{table}
""")
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
