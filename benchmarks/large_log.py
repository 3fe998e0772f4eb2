"""Time to diagnose a large log, divided by the time that ripgrep takes to search it for one word.

    python -m benchmarks.large_log [--megabytes 300] [--rounds 3]

The log is that of a training with eight ranks that ends with an exception. The commands run in turn. The result is
printed and written to benchmarks/large_log.md. Needs `rg`.
"""

from __future__ import annotations

import argparse
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
LAUNCH = str(Path(sys.executable).with_name("hpc-launch"))
END = (
    '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/w/train.py", line 10, in <module>\n'
    "[rank3]:     main()\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)


def lines() -> Iterator[str]:
    """The lines of a training that never ends: a step, what eight ranks say meanwhile, now and then a warning."""
    dice, step = random.Random(3), 0  # noqa: S311 - the same log each time
    while True:
        step += 1
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1767225600 + step * 0.7))
        yield (
            f"[{stamp}] iteration {step:8d}/ 5000000 | consumed samples: {step * 512:12d} | elapsed time per iteration "
            f"(ms): {dice.uniform(600, 800):.1f} | learning rate: {dice.random() * 1e-4:.3E} | lm loss: "
            f"{dice.uniform(2, 4):.6E} | grad norm: {dice.uniform(0.1, 2):.3f} | number of nan iterations: 0 |\n"
        )
        for rank in range(8):
            worker, shard = dice.randrange(64), dice.randrange(10**6)
            yield f"[rank{rank}]: {stamp} INFO data: worker {worker} read shard {shard:06d}\n"
        if step % 50 == 0:
            yield f"{stamp} WARNING: slow batch of {dice.randrange(1000)} tokens on node{dice.randrange(100):03d}\n"


def write_log(path: Path, size: int) -> None:
    """Write a log of about so many bytes."""
    written = 0
    with path.open("w", encoding="utf-8") as stream:
        for line in lines():
            written += stream.write(line)
            if written > size:
                break
        stream.write(END)


def run_time(command: list[str]) -> float:
    """Run a command, whose exit code does not matter, and return its duration in seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=False, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure, then print and save the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    search = shutil.which("rg")
    if search is None:
        sys.exit("rg not found: install ripgrep")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        write_log(log, options.megabytes << 20)
        commands = [search, "-c", "OutOfMemoryError", str(log)], [LAUNCH, "why", "--log", str(log), "--json"]
        times = [[run_time(command) for command in commands] for _ in range(options.rounds + 1)][1:]
    ratio = statistics.median(diagnosed for _, diagnosed in times) / statistics.median(found for found, _ in times)
    text = (
        "# Diagnosis of a large log\n\nWritten by `python -m benchmarks.large_log`: `why --log` of a log of "
        f"{options.megabytes} MB, divided by `rg -c` on the same file.\n\nPython {platform.python_version()}, "
        f"{options.rounds} rounds in turn, warm file cache: {ratio:.0f} times as long, at most 30 wanted.\n"
    )
    (HERE / "large_log.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
