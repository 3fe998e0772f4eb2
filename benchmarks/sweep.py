"""A sweep of 1,000 points: `python -m benchmarks.sweep [POINTS]`, as root with Debian's Slurm.

Compares `hpc-launch submit` of one job file, a loop of `sbatch` and Submitit's `map_array` on the test cluster: wall
time, and the requests to the controller by sdiag. All jobs are held, so that only the submission is measured.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable

from tests.cluster import Cluster
from tests.slurm.user import PROFILES

MAX_ARRAY_SIZE = 251
JOB = """
name: sweep
launcher: none
command: [sleep, "60"]
time: 5
cpus_per_node: 1
sbatch: {{hold: true}}
sweep: {{random: {{count: {points}, values: {{args.lr: {{low: 1e-6, high: 1e-2, scale: log}}}}}}}}
"""
LOOP = """
for point in $(seq {points}); do sbatch --hold --partition=gpu --time=5 job.sh $point >/dev/null || exit; done
"""
MAP_ARRAY = """
import submitit
executor = submitit.AutoExecutor(folder="submitit")
executor.update_parameters(timeout_min=5, slurm_partition="gpu", slurm_additional_parameters={{"hold": True}})
values = list(range({points}))
for begin in range(0, len(values), {size}): # Slurm refuses longer arrays; map_array does not split them
    executor.map_array(float, values[begin : begin + {size}])
"""


def calls(cluster: Cluster) -> dict[str, int]:
    """Requests to the controller by type."""
    text = cluster.run(["sdiag"], user="root", check=True).stdout
    return {
        name: int(count)
        for name, count in re.findall(r"^\s+((?:REQUEST|MESSAGE)_\w+)\s.*count:(\d+)", text, re.MULTILINE)
    }


def measured(cluster: Cluster, action: Callable[[], object]) -> tuple[float, int, int]:
    """Seconds, submissions, and all requests of clients."""
    before, begin = calls(cluster), time.monotonic()
    action()
    spent, after = time.monotonic() - begin, calls(cluster)
    new = {name: count - before.get(name, 0) for name, count in after.items()}
    own = {name: count for name, count in new.items() if "STATS" not in name}
    return spent, new.get("REQUEST_SUBMIT_BATCH_JOB", 0), sum(own.values())


def main(points: int) -> None:
    """Print the table."""
    lines = [f"MaxArraySize={MAX_ARRAY_SIZE}", "MaxJobCount=20000"]
    with Cluster.start(nodes=1, gpus_per_node=0, slurm_conf=lines) as cluster:
        home = cluster.home / "bench"
        cluster.run(["mkdir", "-p", str(home)], check=True)
        env = {
            "HPC_LAUNCH_SITE_PATH": str(PROFILES),
            "HPC_LAUNCH_SITE": "testcluster",
            "HPC_LAUNCH_HOME": str(home / "runs"),
            **{f"XDG_{name}_HOME": str(home / name.lower()) for name in ("STATE", "CONFIG", "CACHE")},
        }
        cluster.write(home / "job.yaml", JOB.format(points=points))
        cluster.write(home / "job.sh", "#!/bin/bash\nsleep 60\n")
        cluster.write(home / "loop.sh", LOOP.format(points=points))
        cluster.write(home / "map.py", MAP_ARRAY.format(points=points, size=MAX_ARRAY_SIZE))

        def run(*command: str) -> Callable[[], object]:
            return lambda: cluster.run(list(command), cwd=home, env=env, check=True, timeout=600)

        ways = {
            "hpc-launch submit": run("hpc-launch", "submit", "job.yaml"),
            "submitit map_array": run(sys.executable, "map.py"),
            "loop of sbatch": run("bash", "loop.sh"),
        }
        print("| way | wall time | submissions | all requests to the controller |")
        print("|---|---|---|---|")
        for name, action in ways.items():
            spent, submissions, requests = measured(cluster, action)
            print(f"| {name} | {spent:.1f} s | {submissions} | {requests} |", flush=True)
            cluster.run(["scancel", "--user", "alice"])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
