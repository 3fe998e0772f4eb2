"""What our script costs: from the batch script's first command to the training's first line, against a minimal script.

    python -m benchmarks.launch [--rounds 10]

Both start the same training with torchrun on two nodes of the tests' own Slurm, in turn. Needs what the cluster tests
need. The result is printed and written to benchmarks/launch.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from tests.cluster import Cluster
from tests.slurm.user import User

HERE = Path(__file__).parent

TRAINING = """\
import sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as stream:
        stream.write(str(time.time()))
dist.destroy_process_group()
"""

MINIMAL = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=2
STAMP
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --cpus-per-task=2 bash -c 'exec PYTHON -m torch.distributed.run --nnodes=2 --nproc-per-node=1 \\
    --node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR --master-port=PORT TRAINING FIRST'
"""


def job_file(training: str, first: str) -> str:
    """The same job for us."""
    return (
        "name: bench\nnodes: 2\nprocesses_per_node: 1\ncpus_per_node: 2\nenv: {OMP_NUM_THREADS: null}\n"
        f"script: {training}\nargs: [{first}]\n"
    )


def seconds(user: User, script: str, name: str) -> float:
    """Run a script and return what passed between its stamp and the training's first line."""
    path = Path(user.job(script, name))
    done = user.cluster.run(["sbatch", "--wait", "--output=/dev/null", str(path)], cwd=user.home, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{name} failed: {done.stderr}")
    began, first = (float((user.home / file).read_text()) for file in ("began", "first"))
    return first - began


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    ours: list[float] = []
    minimal: list[float] = []
    with Cluster.start(accounting=False) as cluster:
        user = User(cluster, cluster.user_folder("bench-"))
        stamp = f"date +%s.%N >{user.home / 'began'}"
        training, first = user.job(TRAINING, "training.py"), str(user.home / "first")
        rendered = user.launch("render", user.job(job_file(training, first)))
        script = rendered.stdout.replace("set -o pipefail\n", f"{stamp}\nset -o pipefail\n", 1)
        by_hand = MINIMAL.replace("STAMP", stamp).replace("PYTHON", sys.executable)
        by_hand = by_hand.replace("TRAINING", training).replace("FIRST", first)
        for number in range(rounds + 1):
            port = str(20000 + number)
            times = (
                seconds(user, script, "ours.sh"),
                seconds(user, by_hand.replace("PORT", port), "minimal.sh"),
            )
            if number:  # the first round warms the file cache
                ours.append(times[0])
                minimal.append(times[1])
            time.sleep(0.5)
    each = [one / other for one, other in zip(ours, minimal, strict=True)]
    text = (
        "# The cost of the launch\n\n"
        "Made by `python -m benchmarks.launch`: from the batch script's first command to the training's first line, "
        "torchrun on two nodes, ours beside a minimal script, in turn.\n\n"
        "| | ratio of medians | lowest | highest | allowed |\n|---|---|---|---|---|\n"
        f"| ours / minimal, {rounds} rounds | {statistics.median(ours) / statistics.median(minimal):.3f} "
        f"| {min(each):.3f} | {max(each):.3f} | 1.05 |\n"
    )
    (HERE / "launch.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
