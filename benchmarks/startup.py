"""How long the verbs take to start, as ratios to `python -c pass`, all measured in turn in one run.

    python -m benchmarks.startup [--torchx PATH] [--rounds 15]

With the path of a `torchx` command, its dry run of the same job is measured beside `render`. The result is printed and
written to benchmarks/startup.md.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "tiny-gpt"
LAUNCH = str(Path(sys.executable).with_name("hpc-launch"))
JOB = [str(EXAMPLE / "job.yaml"), "--site", "local"]

COMMANDS = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "hpc-launch --help": ([LAUNCH, "--help"], 5),
    "hpc-launch render": ([LAUNCH, "render", *JOB], 16),
    "hpc-launch submit --dry-run": ([LAUNCH, "submit", "--dry-run", *JOB], 18),
    "hpc-launch validate": ([LAUNCH, "validate", *JOB], None),
    "hpc-launch list": ([LAUNCH, "list"], None),
}
"""The command of each row, and the most that it may cost in bare interpreters."""


def once(command: list[str]) -> float:
    """Seconds from start to end of one run."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=EXAMPLE)
    return time.perf_counter() - began


def measure(commands: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    """The times of each command; in turn, so that a slow minute of the machine hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        once(command)  # warm: files cached, byte code and templates compiled
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(once(command))
    return times


def table(times: dict[str, list[float]]) -> str:
    """The rows as Markdown: ratios of medians, and each round's ratio at its lowest and highest."""
    bare = times["python -c pass"]
    rows = ["| command | ratio | lowest | highest | allowed |", "|---|---|---|---|---|"]
    for name, taken in times.items():
        each = [one / base for one, base in zip(taken, bare, strict=True)]
        most = COMMANDS.get(name, ([], None))[1]
        ratio = statistics.median(taken) / statistics.median(bare)
        rows.append(f"| `{name}` | {ratio:.1f} | {min(each):.1f} | {max(each):.1f} | {most or ''} |")
    return "\n".join(rows)


def main() -> None:
    """Measure, print and keep the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--torchx")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    commands = {name: command for name, (command, _) in COMMANDS.items()}
    if options.torchx:
        dry_run = ["run", "-s", "slurm", "--dryrun", "dist.ddp", "-j", "2x2", "--script", "train.py", "--"]
        commands["torchx run --dryrun"] = [options.torchx, *dry_run, "--steps", "200"]
    text = (
        "# Start-up of the verbs\n\n"
        "Made by `make bench`. Times of whole processes, in turn in one run, as ratios to a bare interpreter.\n\n"
        f"Python {platform.python_version()}, {options.rounds} rounds, warm file cache.\n\n"
        f"{table(measure(commands, options.rounds))}\n"
    )
    (HERE / "startup.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
