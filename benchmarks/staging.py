"""Copies on the nodes' own disks: time from the start of a job to the first line of its training, with and without.

    python -m benchmarks.staging [--rounds 3] [--delay 0.005]

The environment is on a slow shared disk (benchmarks/slow_disk.py), which each node of the test cluster mounts anew
before every job, with an empty cache. The training imports its modules on 4 nodes x 2 processes; the last process to
print a line counts. The requirements are those of the cluster tests. The result is printed and written to
benchmarks/staging.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.slow_disk import __file__ as slow_disk
from tests.cluster import Cluster
from tests.slurm.user import User

HERE = Path(__file__).parent
SHARED, LOCAL = "/mnt", "/srv"
IMPORTED, OTHERS = 1500, 4000
"""Modules that the training imports, and further modules of the environment."""
SITE = f"paths: {{local: {{path: {LOCAL}, node_local: true}}}}\n"
TRAINING = """\
import glob, os, time
import packages
packages.load()
with open(os.environ["HPC_LAUNCH_ATTEMPT_DIR"] + "/first-" + os.environ["RANK"], "w") as stream:
    stream.write(str(time.time()))
if os.environ["HPC_LAUNCH_ATTEMPT"] == os.environ["FAILS"]:
    while len(glob.glob(os.environ["HPC_LAUNCH_ATTEMPT_DIR"] + "/first-*")) < 8:
        time.sleep(0.1)
    raise SystemExit("OSError: [Errno 116] Stale file handle: /scratch/corpus/part-7.bin")
"""


def make_environment(user: User) -> None:
    """A virtual environment with many modules, compiled as pip does."""
    shared, env = user.home / "shared", Path(SHARED, "env")
    user.cluster.run(["mkdir", str(shared)], check=True)
    user.cluster.run(["mount", "--bind", str(shared), SHARED], user="root", check=True)
    user.cluster.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    packages = env / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages" / "packages"
    code = f"""
import os, pathlib, sys
top = pathlib.Path(sys.argv[1])
top.mkdir()
for number in range({IMPORTED + OTHERS}):
    folder = top / f"p{{number // 50}}"
    folder.mkdir(exist_ok=True)
    if number % 50 == 0:
        (folder / "__init__.py").write_text("")
    (folder / f"m{{number}}.py").write_text("x = 1\\n" + "def f(a, b):\\n    return a + b\\n" * 20)
(top / "library.so").write_bytes(os.urandom(1 << 26))
(top / "__init__.py").write_text(
    "import importlib\\ndef load():\\n    for n in range({IMPORTED}):\\n"
    "        importlib.import_module(f'packages.p{{n // 50}}.m{{n}}')\\n")
"""
    user.cluster.run([sys.executable, "-c", code, str(packages)], check=True)
    user.cluster.run([sys.executable, "-m", "compileall", "-q", str(packages)], check=True, timeout=300)
    user.cluster.run(["umount", SHARED], user="root", check=True)


def store(user: User) -> Path:
    """Where the job keeps its archives."""
    return user.home / "runs" / f".staged-{user.cluster.uid}"


@contextmanager
def disks(user: User, delay: float, *, archives: bool = False) -> Iterator[None]:
    """The slow disk on each node, with an empty cache. `archives`: it holds the archives too, and is read-only."""
    served = []
    cluster = user.cluster
    for node in (None, *cluster.nodes):
        words = [sys.executable, "-m", "benchmarks.slow_disk", str(user.home / "shared"), SHARED]
        words += ["--delay", str(delay if node else 0)]
        root = Path(slow_disk).parents[1]
        served.append(cluster.popen(words, cwd=root, user="root", node=node, stderr=None))
    try:
        for one in served:
            if one.stdout is None or one.stdout.readline() != "mounted\n":
                sys.exit("the slow disk was not mounted")
        for node in cluster.nodes if archives else ():
            cluster.run(["mount", "--bind", f"{SHARED}/store", str(store(user))], user="root", node=node, check=True)
        yield
    finally:
        for node in cluster.nodes if archives else ():
            cluster.run(["umount", str(store(user))], user="root", node=node)
        for node in (None, *cluster.nodes):
            cluster.run(["umount", "--lazy", SHARED], user="root", node=node)
        for one in served:
            one.wait(30)


def local_disks(user: User) -> None:
    """An empty disk for each node."""
    for node in user.cluster.nodes:
        image = user.home / f"disk-of-{node}"
        script = f"umount {LOCAL} 2>/dev/null; rm -f {image}; truncate -s 1G {image} && mkfs.ext4 -q {image} && "
        script += f"mount -o loop {image} {LOCAL} && chmod 1777 {LOCAL}"
        user.cluster.run(["sh", "-c", script], user="root", node=node, check=True)


def first_lines(user: User, stage: str, fails: int = 0) -> list[float]:
    """Seconds to the first line in each attempt. The first one fails with `fails: 1`, and a second one follows."""
    keys = {
        "name": f"stage-{stage}",
        "launcher": "srun",
        "nodes": 4,
        "processes_per_node": 2,
        "environment": {
            "source": [user.job('date +%s.%N >"$HPC_LAUNCH_ATTEMPT_DIR/began"\n', "began.sh")],
            "venv": f"{SHARED}/env",
            "python": "python3",
            "stage": stage,
        },
        "env": {"FAILS": str(fails)},
        "script": user.job(TRAINING, "training.py"),
        "retry": {"backoff": "1s"},
        "preflight": "off",
    }
    run = Path(user.submit(json.dumps(keys))["folder"])
    user.until(run.name, "COMPLETED", seconds=600)
    result = []
    for attempt in sorted((run / "attempts").iterdir()):
        text = (attempt / "batch.log").read_text()
        print("".join(line for line in text.splitlines(keepends=True) if "stag" in line), end="")
        firsts = [float(path.read_text()) for path in attempt.glob("first-*")]
        if len(firsts) != 8:
            sys.exit(f"a process printed no first line:\n{text}")
        result.append(max(firsts) - float((attempt / "began").read_text()))
    return result


def main() -> None:
    """Measure, then print and save the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.005)
    args = parser.parse_args()
    times: dict[str, list[float]] = {"without": [], "first": [], "archive": [], "second": []}
    with Cluster.start(accounting=False) as cluster:
        user = User(cluster, cluster.user_folder("bench-"))
        user.site(SITE)
        make_environment(user)
        for _ in range(args.rounds):
            with disks(user, args.delay):
                times["without"] += first_lines(user, "off")
            local_disks(user)
            user.cluster.run(["rm", "-rf", str(store(user)), str(user.home / "shared" / "store")], check=True)
            with disks(user, args.delay):
                times["first"] += first_lines(user, "node")
            local_disks(user)
            user.cluster.run(["mv", str(store(user)), str(user.home / "shared" / "store")], check=True)
            user.cluster.run(["mkdir", "-m", "700", str(store(user))], check=True)
            with disks(user, args.delay, archives=True):
                one, two = first_lines(user, "node", fails=1)
                times["archive"].append(one)
                times["second"].append(two)
            print({name: round(values[-1], 2) for name, values in times.items()}, flush=True)
        for node in cluster.nodes:
            cluster.run(["umount", LOCAL], user="root", node=node)
        cluster.run(["rm", "-rf", str(user.home)], user="root", timeout=300)
    base = statistics.median(times["without"])
    rows = {
        "first": "the first job packs the archive and copies it to the nodes",
        "archive": "a later job on new nodes copies the archive",
        "second": "the next attempt on the same nodes copies nothing",
    }
    about = (
        "Generated by `python -m benchmarks.staging`. Time from the start of the job to the first line of its training "
        f"on 4 nodes x 2 processes, without and with `environment.stage: node`. {IMPORTED} of {IMPORTED + OTHERS} "
        f"modules are imported from a disk that takes {args.delay * 1000:g} ms for each request. The first job writes "
        "the archive to a disk without this delay; the later ones read it with the delay. All nodes share two cores."
    )
    lines = ["# Copies on the nodes' own disks", "", about, ""]
    lines += ["| job | times faster than without a copy | lowest | highest | required |", "|---|---|---|---|---|"]
    for name, title in rows.items():
        ratios = [base / value for value in times[name]]
        required = "3" if name != "first" else ""
        median = base / statistics.median(times[name])
        lines.append(f"| {title} | {median:.1f} | {min(ratios):.1f} | {max(ratios):.1f} | {required} |")
    text = "\n".join(lines) + "\n"
    (HERE / "staging.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
