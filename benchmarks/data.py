"""Data of many small files: from the start of a job to its first file, and until it has read all of them.

    python -m benchmarks.data [--files 100000] [--rounds 3] [--delay 0.0002] [--folder /tmp]

The job runs on this machine, with `data:` as a folder that is copied, and as a squashfs image of it that is mounted or
copied. Source and copies are in the folder for temporary files. The job sees the source through a slow shared disk
(benchmarks/slow_disk.py; needs root), which is mounted anew before each job, with an empty cache. The result is printed
and written to benchmarks/data.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.slow_disk import __file__ as slow_disk
from hpc_launch.agent.folders import file_system

HERE = Path(__file__).parent
SIZE = 2000
"""Bytes of a file, on average."""
TRAINING = """\
import os, pathlib, random, time
folder, attempt = pathlib.Path(os.environ["HPC_LAUNCH_DATA"]), pathlib.Path(os.environ["HPC_LAUNCH_ATTEMPT_DIR"])
paths = [f"{top}/{name}" for top, _, names in os.walk(folder) for name in names]
random.Random(1).shuffle(paths)
def mark(name):
    (attempt / name).write_text(str(time.time()))
with open(paths[0], "rb") as stream:
    stream.read()
mark("first")
for path in paths:
    with open(path, "rb") as stream:
        stream.read()
mark("all")
(attempt / "files").write_text(str(len(paths)))
"""


def make(folder: Path, files: int) -> None:
    """The files, in folders of 1000, and an image of them."""
    for number in range(files):
        if number % 1000 == 0:
            (folder / "corpus" / f"{number // 1000}").mkdir(parents=True)
        (folder / "corpus" / f"{number // 1000}" / f"{number}.jpg").write_bytes(os.urandom(SIZE // 2 + number % SIZE))
    pack = ["mksquashfs", "corpus", "corpus.sqsh", "-quiet", "-no-progress"]
    subprocess.run(pack, cwd=folder, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def shared(source: Path, target: Path, delay: float) -> Iterator[Path]:
    """Where the job finds its data: a slow disk with an empty cache that shows the source, or the source itself."""
    if not delay:
        yield source
        return
    target.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "benchmarks.slow_disk", str(source), str(target), "--delay", str(delay)]
    with subprocess.Popen(words, cwd=Path(slow_disk).parents[1], stdout=subprocess.PIPE, text=True) as disk:
        if disk.stdout is None or disk.stdout.readline() != "mounted\n":
            sys.exit("the slow disk was not mounted")
        try:
            yield target
        finally:
            subprocess.run(["umount", "--lazy", str(target)], check=True)
            disk.terminate()  # a mount namespace that was made meanwhile may hold the disk


def measure(folder: Path, data: dict[str, str], files: int) -> tuple[float, float]:
    """Seconds from the start of the job to the first file, and until all of them were read."""
    paths = {"disk": {"path": str(folder / "node"), "node_local": True}}
    site = {"name": "here", "scheduler": "local", "node_classes": {"here": {"cpus": 1, "gpus": 0}}, "paths": paths}
    site["queues"] = {"here": {"node_class": "here", "memory": "omit"}}
    (folder / "here.yaml").write_text(json.dumps(site))
    (folder / "training.py").write_text(TRAINING)
    (folder / "began.sh").write_text('date +%s.%N >"$HPC_LAUNCH_ATTEMPT_DIR/began"\n')
    job = {"name": "fed", "site": "./here.yaml", "launcher": "none", "code": "off", "data": data}
    job |= {"command": [sys.executable, "training.py"], "environment": {"source": ["began.sh"]}}
    (folder / "job.yaml").write_text(json.dumps(job))
    env = {**os.environ, "HPC_LAUNCH_HOME": str(folder / "runs"), "XDG_STATE_HOME": str(folder / "state")}
    words = [sys.executable, "-m", "hpc_launch", "submit", "job.yaml", "--wait", "--json"]
    done = subprocess.run(words, cwd=folder, env=env, check=True, stdout=subprocess.PIPE, text=True)
    attempt = Path(json.loads(done.stdout)["folder"], "attempts", "001")
    if int((attempt / "files").read_text()) != files:
        sys.exit(f"the job did not see all files: {attempt}")
    first, last, began = (float((attempt / name).read_text()) for name in ("first", "all", "began"))
    return first - began, last - began


def main() -> None:
    """Measure, then print and save the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.0002)
    parser.add_argument("--folder", default=None, help="default: that of temporary files")
    args = parser.parse_args()
    ways = {
        "a folder, copied": {"from": "corpus"},
        "an image, mounted": {"from": "corpus.sqsh"},
        "an image, copied and mounted": {"from": "corpus.sqsh", "how": "copy"},
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        (folder / "source").mkdir()
        (folder / "node").mkdir()
        make(folder / "source", args.files)
        system = file_system(name)
        for _ in range(args.rounds):
            for way, data in ways.items():
                with shared(folder / "source", folder / "shared", args.delay) as place:
                    times[way].append(measure(folder, {**data, "from": f"{place}/{data['from']}"}, args.files))
                print(way, [round(value, 2) for value in times[way][-1]], flush=True)
                subprocess.run(["sh", "-c", "rm -rf runs/.staged-* node/*"], cwd=folder, check=True)
    base = [statistics.median(one[at] for one in times["a folder, copied"]) for at in (0, 1)]
    disk = f"a disk that takes {args.delay * 1000:g} ms for each request" if args.delay else "the same disk"
    about = (
        "Generated by `python -m benchmarks.data`. Time from the start of a job on this machine to the first file that "
        f"its training reads, and until one process has read all {args.files:,} files of about 2 kB in random order, "
        f"relative to a folder that is copied. The originals are on {disk}, the copies on {system}; the cache of the "
        f"originals is empty at the start. Medians of {args.rounds} rounds."
    )
    lines = ["# Data of many small files", "", about, ""]
    lines += ["| `data:` | to the first file | lowest | highest | all files read |", "|---|---|---|---|---|"]
    for way, values in times.items():
        firsts = [base[0] / first for first, _ in values]
        row = (
            statistics.median(firsts),
            min(firsts),
            max(firsts),
            base[1] / statistics.median(last for _, last in values),
        )
        lines.append(f"| {way} | {row[0]:.1f} | {row[1]:.1f} | {row[2]:.1f} | {row[3]:.1f} |")
    text = "\n".join(lines) + "\n"
    (HERE / "data.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
