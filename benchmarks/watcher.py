"""What the watcher costs: its CPU time as a share of one core, and the training's steps with it beside those without.

    python -m benchmarks.watcher [--seconds 120] [--rounds 3]

First one run at default settings, of which the watcher's own end record is read; then short runs of the same training,
with and without it, in turn. Two ranks on this machine, through `--site local`. The result is printed and written to
benchmarks/watcher.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ALLOWED = 0.5
"""Per cent of one core."""

TRAINING = """\
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch, times = torch.randn(64, 256), []
end = time.time() + float(sys.argv[1])
going = torch.ones(1)
while going.item():
    began = time.perf_counter()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
    if len(times) % 100 == 0:
        going.fill_(float(time.time() < end))
        dist.broadcast(going, 0)
        if dist.get_rank() == 0:
            print("step", len(times), flush=True)
if dist.get_rank() == 0:
    times = sorted(times[100:])
    print("median", times[len(times) // 2], flush=True)
dist.destroy_process_group()
"""


class Trainings:
    """Runs the training, each time as a run of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "train.py").write_text(TRAINING)
        homes = {"HPC_LAUNCH_HOME": "runs", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config"}
        self._env = {**os.environ, **{name: str(folder / home) for name, home in homes.items()}}

    def run(self, seconds: float, *, watched: bool) -> tuple[float, dict[str, Any] | None]:
        """The median time of a step, and the watcher's end record where there was one."""
        job: dict[str, Any] = {"name": "bench", "site": "local", "script": "train.py", "args": [seconds], "retry": 1}
        job |= {"processes_per_node": 2, "time": "00:20:00", "env": {"OMP_NUM_THREADS": 1}}
        file = self._folder / "job.yaml"
        file.write_text(json.dumps(job if watched else {**job, "hang": False}))
        command = [sys.executable, "-m", "hpc_launch.cli.main", "submit", str(file), "--wait", "--json"]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"the training failed: {done.stdout}{done.stderr}")
        attempt = Path(json.loads(done.stdout.splitlines()[0])["folder"]) / "attempts" / "001"
        log = (attempt / "logs" / "node-0.log").read_text()
        step = float(log.rpartition("median ")[2].split()[0])
        notes = attempt / "agent" / "node-0.jsonl"
        return step, json.loads(notes.read_text().splitlines()[-1]) if watched else None


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        trainings = Trainings(Path(folder))
        end = trainings.run(options.seconds, watched=True)[1] or {}
        pairs = []
        for number in range(options.rounds + 1):
            pair = tuple(trainings.run(15, watched=watched)[0] for watched in (True, False))
            if number:  # the first round warms the file cache
                pairs.append(pair)
    share = 100 * end["cpu_s"] / end["wall_s"]
    each = [watched / bare for watched, bare in pairs]
    noise = [bare / pairs[0][1] for _, bare in pairs]
    text = (
        "# The cost of the watcher\n\n"
        "Made by `python -m benchmarks.watcher`: two ranks of a small model on one machine, at default settings.\n\n"
        "| | measured | lowest | highest | allowed |\n|---|---|---|---|---|\n"
        f"| CPU time of the watcher in {end['wall_s']:.0f} s, of one core | {share:.3f} % | | | {ALLOWED} % |\n"
        f"| step with it / without, {options.rounds} rounds | {statistics.median(each):.3f} | {min(each):.3f} "
        f"| {max(each):.3f} | |\n"
        f"| step without / first without (noise) | {statistics.median(noise):.3f} | {min(noise):.3f} "
        f"| {max(noise):.3f} | |\n"
    )
    (HERE / "watcher.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
