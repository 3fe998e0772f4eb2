"""The start of 64 hosts over ssh beside pdsh, and the memory of what follows them.

    python -m benchmarks.fan_out [--hosts 64] [--rounds 5] [--seconds 40]

The hosts are those of the test cluster: namespaces of this machine, each with an sshd. hpc-launch and pdsh start a
script that ends at once, in turn. Then a run with one process on each host prints a line a second; `submit --wait` and
`logs --follow` watch it. The result is printed and written to benchmarks/fan_out.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tests.agent.program import archive
from tests.cluster import Cluster
from tests.cluster.ssh import connect_nodes
from tests.ssh.ssh_user import SshUser

HERE = Path(__file__).parent
ALLOWED_MB = 200.0
WATCHED = {
    "`submit --wait`": "/hpc-launch submit ",
    "`logs --follow`": "/hpc-launch logs ",
    "fan-out on the first host": "agent.pyz fan_out ",
    "agent of a host": "agent.pyz on_host ",
    "supervisor": "local.supervisor ",
}
"""A part of the command of each process whose memory is measured."""
TRAINS = "for (( i = 0; i < {seconds}; i++ )); do echo rank $RANK line $i; sleep 1; done"


def times(user: SshUser, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of hpc-launch and of pdsh to start a script that ends at once on all hosts."""
    cluster, folder = user.cluster, user.home / "attempt"
    cluster.run(["mkdir", "-p", str(folder / "logs")], check=True)
    shutil.copy(archive(), folder)
    cluster.write(folder / "node.sh", "true\n")
    ours = [sys.executable, "-I", str(folder / "agent.pyz"), "fan_out", str(folder), *cluster.nodes]
    hosts = f"n[1-{len(cluster.nodes)}]"
    theirs = ["pdsh", "-S", "-R", "ssh", "-w", hosts, f"bash {folder}/node.sh begin 0"]
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for command, seconds in zip((ours, theirs), found, strict=True):
            begin = time.perf_counter()
            cluster.run(command, node="n1", check=True)
            if number:  # the first round warms the file cache
                seconds.append(time.perf_counter() - begin)
    return found


def memory(user: SshUser, seconds: int) -> tuple[dict[str, float], int]:
    """The largest resident memory of each kind of process in MB, and of how many hosts the last line was followed."""
    nodes = user.cluster.nodes
    job = {
        "name": "many", "nodes": len(nodes), "launcher": "srun", "time": "00:20:00",
        "command": ["bash", "-c", TRAINS.format(seconds=seconds)],
    }  # fmt: skip
    client = user.popen("submit", user.job(json.dumps(job)), "--wait")
    while client.poll() is None and not list(user.home.glob("runs/*/attempts/001/logs/*.began")):
        time.sleep(0.2)
    followed = ""
    with ThreadPoolExecutor(1) as pool:
        follower = pool.submit(user.launch, "logs", "--follow", "@last")
        largest: dict[str, float] = {}
        while client.poll() is None:
            for name, megabytes in sizes(str(user.home)):
                largest[name] = max(largest.get(name, 0.0), megabytes)
            time.sleep(0.5)
        followed = follower.result().stdout
    output = client.communicate()
    if client.returncode != 0:
        sys.exit(f"the run failed: {output}")
    return largest, len(set(re.findall(rf"rank (\d+) line {seconds - 1}\n", followed)))


def sizes(home: str) -> Iterator[tuple[str, float]]:
    """The kind of each process of this user, and the most memory that it had so far, in MB."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            name = next((name for name, word in WATCHED.items() if word in command), None)
            if name is None or "tests.cluster" in command:
                continue
            found = re.search(r"VmHWM:\s+(\d+) kB", (entry / "status").read_text())
            if found and home in command + (entry / "environ").read_bytes().decode(errors="replace"):
                yield name, int(found[1]) / 1024


def main() -> None:
    """Measure, then print and save the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=40)
    options = parser.parse_args()
    with Cluster.start(nodes=options.hosts, gpus_per_node=0, accounting=False) as cluster:
        connect_nodes(cluster)
        user = SshUser(cluster, cluster.user_folder("fan-out-"))
        user.profile(f"hosts: {json.dumps(dict.fromkeys(cluster.nodes, 1))}")
        ours, theirs = times(user, options.rounds)
        largest, followed = memory(user, options.seconds)
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    rows = [f"| {name} | {largest.get(name, 0.0):.0f} MB | {ALLOWED_MB:.0f} MB |" for name in WATCHED]
    text = (
        f"# {options.hosts} hosts over ssh\n\n"
        f"Generated by `python -m benchmarks.fan_out`: {options.hosts} namespaces of one machine, each with sshd.\n\n"
        "| a script that ends at once, on all hosts | median | lowest | highest |\n|---|---|---|---|\n"
        f"| time of hpc-launch / time of pdsh, {options.rounds} rounds | {statistics.median(ratios):.2f} "
        f"| {min(ratios):.2f} | {max(ratios):.2f} |\n\n"
        f"In a run with a process on each host, `logs --follow` printed the last line of {followed} of the\n"
        f"{options.hosts} processes. The most memory that a process had:\n\n"
        "| process | resident | allowed |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    (HERE / "fan_out.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
