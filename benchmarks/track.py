"""Track 2,000 jobs for ten minutes: `python -m benchmarks.track [SECONDS]`, as root with Debian's Slurm.

Twenty sweeps of 100 points wait, run and end on the test cluster. Each way of tracking them runs beside the others: in
one process for all jobs, or in twenty processes of one sweep each, as when each sweep is followed from a terminal or by
a script of its own. Commands of Slurm are counted by programs of the same name in front of them on the PATH. The age of
a state is that of the scheduler's answer behind it, at each look at a job that has not ended.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.cluster import Cluster
from tests.slurm.user import PROFILES

SWEEPS, POINTS = 20, 100
FRESH_S = 15.0
LOOK_S = 3.0
"""Pause between two looks, as in `hpc-launch watch`."""
COMMANDS = ("squeue", "sacct", "scontrol", "sacctmgr", "sinfo")
COUNTER = '#!/bin/sh\necho {name} >>"$CALLS"\nexec {program} "$@"\n'
JOB = f"""
name: track
launcher: none
command: [sh, -c, 'echo "step 1/1"; sleep $((30 + $(($2 * 7919)) % 60))', x, --]
time: 5
cpus_per_node: 1
hang: false
progress: {{step: 'step (\\d+)/(\\d+)'}}
sweep: {{grid: {{args.point: {list(range(POINTS))}}}}}
"""


def submitit(arrays: list[str], end: float) -> tuple[float, int]:
    """Follow array tasks with Submitit's watcher until a time; the greatest age of a state, and how many ended."""
    from submitit.slurm.slurm import SlurmInfoWatcher

    class Timed(SlurmInfoWatcher):
        asked = time.time()

        def update(self) -> None:
            began = time.time()
            super().update()
            self.asked = began

    watcher = Timed(delay_s=int(FRESH_S) - 1)
    ids = [f"{array}_{task}" for array in arrays for task in range(POINTS)]
    for job_id in ids:
        watcher.register_job(job_id)
    oldest, ended = 0.0, 0
    while time.time() < end:
        ended = sum(watcher.is_done(job_id) for job_id in ids)
        oldest = max(oldest, time.time() - watcher.asked)
        time.sleep(0.5)
    return oldest, ended


def hpc_launch(folders: list[str], end: float) -> tuple[float, int]:
    """The same with hpc-launch, as `watch SWEEP…` does it."""
    from hpc_launch.runs.layout import RunFolder
    from hpc_launch.runs.run_index import user_index
    from hpc_launch.service.poll import poll_sweep

    index, oldest, ended = user_index(os.environ), 0.0, 0
    while time.time() < end:
        statuses = [one.status for folder in folders for one in poll_sweep(RunFolder(Path(folder)), index).points]
        ended = sum(status.final for status in statuses)
        oldest = max([oldest, *(status.age_s or 0.0 for status in statuses if not status.final)])
        time.sleep(LOOK_S)
    return oldest, ended


def follow(way: str, end: float, *what: str) -> None:
    """One client: print what it found and its CPU seconds, without those of Slurm's commands."""
    oldest, ended = {"submitit": submitit, "hpc-launch": hpc_launch}[way](list(what), end)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"oldest": oldest, "ended": ended, "cpu": used.ru_utime + used.ru_stime}))


def main(seconds: float) -> None:
    """Print the table."""
    lines = ["MaxArraySize=1001", "MaxJobCount=20000"]
    with Cluster.start(nodes=3, gpus_per_node=0, slurm_conf=lines) as cluster:
        home = cluster.home / "bench"
        cluster.run(["mkdir", "-p", str(home)], check=True)
        cluster.write(home / "job.yaml", JOB)
        env = {
            "HPC_LAUNCH_SITE_PATH": str(PROFILES),
            "HPC_LAUNCH_SITE": "testcluster",
            "HPC_LAUNCH_HOME": str(home / "runs"),
            **{f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "CACHE", "STATE")},
        }
        answers = []
        for _ in range(SWEEPS):
            done = cluster.run(["hpc-launch", "submit", "job.yaml", "--json"], cwd=home, env=env, check=True)
            answers.append(json.loads(done.stdout))
        groups = {
            "submitit": [[answer["job_id"]] for answer in answers],
            "hpc-launch": [[answer["folder"]] for answer in answers],
        }
        end = time.time() + seconds
        clients: dict[tuple[str, int], list[subprocess.Popen[str]]] = {}
        for way, groups_of_way in groups.items():
            for count in (1, SWEEPS):
                parts = groups_of_way if count > 1 else [[one for group in groups_of_way for one in group]]
                own = _counted(cluster, home / f"{way}-{count}", env)
                words = [sys.executable, "-m", "benchmarks.track", way, str(end)]
                root = Path(__file__).parents[1]
                clients[way, count] = [cluster.popen([*words, *part], cwd=root, env=own) for part in parts]
        print("| way | processes | calls | of them | greatest age of a state | CPU time of the clients | ended |")
        print("|---|---|---|---|---|---|---|")
        for (way, count), processes in clients.items():
            found: list[dict[str, Any]] = [json.loads(one.communicate()[0].splitlines()[-1]) for one in processes]
            calls = Counter((home / f"{way}-{count}" / "calls").read_text().split())
            told = ", ".join(f"{number} {name}" for name, number in calls.most_common())
            oldest, cpu = max(one["oldest"] for one in found), sum(one["cpu"] for one in found)
            ended = sum(one["ended"] for one in found)
            print(
                f"| {way} | {count} | {calls.total()} | {told} | {oldest:.1f} s | {cpu:.0f} s | {ended} |", flush=True
            )
        cluster.run(["scancel", "--user", cluster.user])


def _counted(cluster: Cluster, folder: Path, env: dict[str, str]) -> dict[str, str]:
    """An environment with Slurm's commands counted, and a state folder of its own."""
    cluster.run(["mkdir", "-p", str(folder)], check=True)
    for name in COMMANDS:
        cluster.write(folder / name, COUNTER.format(name=name, program=f"/usr/bin/{name}"), mode=0o755)
    path = f"{folder}:{cluster.environment()['PATH']}"
    return {**env, "PATH": path, "CALLS": str(folder / "calls"), "XDG_STATE_HOME": str(folder / "state")}


if __name__ == "__main__":
    if len(sys.argv) > 2:
        follow(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 600.0)
