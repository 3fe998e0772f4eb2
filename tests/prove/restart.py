"""From a node's death to the next attempt's first step, beside `sbatch --requeue` alone, in one run of both.

Both jobs train the same, take up the same checkpoints and lose their node at the same step, on clusters that were
started alike. What Slurm needs to notice the death is in both figures.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.prove.rounds import Rounds
from tests.prove.row import Row
from tests.prove.scene import TRAINING, Scene
from tests.slurm.user import User

SITES_WAIT = ("AuthInfo=cred_expire=120",)
"""Slurm's default, which holds a requeued job back for two minutes (slurm.conf(5))."""
ROW = Row("restart", "", (), (), job={"nodes": 1, "processes_per_node": 2}, cluster={})

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=1 --ntasks=2 --cpus-per-task=1 --time=10 --requeue --output=/dev/null
export HPC_LAUNCH_ATTEMPT=$((${{SLURM_RESTART_COUNT:-0}} + 1)) MASTER_PORT=23456
export MASTER_ADDR=$(hostname) WORLD_SIZE=2
srun --kill-on-bad-exit bash -c 'RANK=$SLURM_PROCID exec "$@"' _ {command}
"""


def ours(scene: Scene) -> None:
    """hpc-launch with `watch` beside the run."""
    assert scene.submit().returncode == 0
    scene.user.popen("watch", scene.run["run"])


def alone(scene: Scene) -> None:
    """The same training by a script of its own and `sbatch --requeue`."""
    folder = scene.user.home / "saved"
    words = [sys.executable, str(TRAINING), f"--folder={folder}", f"--record={scene.record_file}", "--by-itself"]
    script = scene.user.job(SCRIPT.format(command=shlex.join(words)), "alone.sh")
    scene.cluster.run(["sbatch", script], cwd=scene.user.home, check=True)


def measured(start: Callable[[Scene], None]) -> dict[str, float]:
    """Seconds from the death of the node to what follows."""
    with Cluster.start(nodes=2, gpus_per_node=0, slurm_conf=SITES_WAIT) as cluster:
        scene = Scene(ROW, User(cluster, cluster.user_folder(f"{start.__name__}-")))
        start(scene)
        wait_until(lambda: scene.reached(4, attempt=1), explain=lambda: f"{cluster.jobs()}")
        node = scene.node(0)
        scene.happens()
        cluster.kill_node(node)
        wait_until(lambda: scene.reached(1, attempt=2), 400, lambda: f"{cluster.jobs()}", every=0.3)
        return _times(scene)


def _times(scene: Scene) -> dict[str, float]:
    died = scene.planted or time.time()
    start = next(line.time for line in scene.record() if line.what == "start" and line.attempt == 2)
    step = next(line.time for line in scene.record() if line.what == "step" and line.attempt == 2)
    return {"start_s": round(start - died, 1), "step_s": round(step - died, 1)}


def prove(rounds: Rounds) -> int:
    """Both, side by side, with Slurm's default pause. Gives 1 unless it is under half."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(measured, (ours, alone))
    found = {"ours": first, "alone": second}
    found["ratio"] = {"step": round(found["ours"]["step_s"] / found["alone"]["step_s"], 2)}
    rounds.state.keep("restart", "default", found)
    print(json.dumps(found, indent=1))
    return 0 if found["ratio"]["step"] < 0.5 else 1


def section(rounds: dict[str, Any]) -> str:
    """The part of benchmarks/recovery.md."""
    mine, other = rounds["default"]["ours"], rounds["default"]["alone"]
    return f"""\
| method | until the next training starts | until its first new step |
|---|---|---|
| hpc-launch, `watch` open | {mine["start_s"]} s | {mine["step_s"]} s |
| `sbatch --requeue` alone | {other["start_s"]} s | {other["step_s"]} s |
| ratio | {mine["start_s"] / other["start_s"]:.2f} | {mine["step_s"] / other["step_s"]:.2f} |"""
