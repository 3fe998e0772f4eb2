"""One submission: `python -m benchmarks.submit [ROUNDS]`, as root with Debian's Slurm.

Compares `hpc-launch submit` of one run with a Python program that submits one function through Submitit, on the test
cluster. Each round starts both, one after the other, so that other load on the machine slows down both. All jobs are
held, so that only the submission is measured.
"""

from __future__ import annotations

import compileall
import statistics
import sys
import time

from tests.cluster import Cluster
from tests.cluster.requirements import REPOSITORY
from tests.slurm.user import PROFILES

JOB = """
name: one
launcher: none
command: [sleep, "60"]
time: 5
cpus_per_node: 1
sbatch: {hold: true}
"""
SUBMITIT = """
import submitit
executor = submitit.AutoExecutor(folder="submitit")
executor.update_parameters(timeout_min=5, slurm_partition="gpu", slurm_additional_parameters={"hold": True})
print(executor.submit(float, 1).job_id)
"""


def main(rounds: int) -> None:
    """Print the median times and their ratio."""
    compileall.compile_dir(REPOSITORY / "hpc_launch", quiet=1)  # as pip does, for a user who cannot write there
    with Cluster.start(nodes=1, gpus_per_node=0) as cluster:
        home = cluster.home / "bench"
        cluster.run(["mkdir", "-p", str(home)], check=True)
        env = {
            "HPC_LAUNCH_SITE_PATH": str(PROFILES),
            "HPC_LAUNCH_SITE": "testcluster",
            "HPC_LAUNCH_HOME": str(home / "runs"),
            **{f"XDG_{name}_HOME": str(home / name.lower()) for name in ("STATE", "CONFIG", "CACHE")},
        }
        cluster.write(home / "job.yaml", JOB)
        cluster.write(home / "one.py", SUBMITIT)
        ways = {"hpc-launch submit": ["hpc-launch", "submit", "job.yaml"], "submitit": [sys.executable, "one.py"]}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds + 1):
            for name, command in ways.items():
                begin = time.monotonic()
                cluster.run(command, cwd=home, env=env, check=True, timeout=60)
                times[name].append(time.monotonic() - begin)
        cluster.run(["scancel", "--user", "alice"])
    medians = {name: statistics.median(found[1:]) for name, found in times.items()}  # the first fills caches
    print("| way | median |\n|---|---|")
    for name, seconds in medians.items():
        print(f"| {name} | {seconds:.2f} s |")
    print(f"ratio {medians['hpc-launch submit'] / medians['submitit']:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
