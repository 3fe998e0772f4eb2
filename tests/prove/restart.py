"""From a node's death to the next attempt's first step, beside `sbatch --requeue` alone, in one run of both.

Both jobs train the same, take up the same checkpoints and lose their node at the same step, on clusters that were
started alike. What Slurm needs to notice the death is in both figures.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.prove.matrix import State
from tests.prove.row import Row
from tests.prove.scene import TRAINING, Scene
from tests.slurm.user import User

PAGE = REPOSITORY / "benchmarks" / "recovery.md"
SITES_WAIT = ("AuthInfo=cred_expire=120",)
"""Slurm's default, which holds a requeued job back for two minutes (slurm.conf(5))."""
ROW = Row("restart", "", (), (), job={"nodes": 1, "processes_per_node": 2}, cluster={})

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=1 --ntasks=2 --cpus-per-task=1 --time=10 --requeue --output=/dev/null
export HPC_LAUNCH_ATTEMPT=$((${{SLURM_RESTART_COUNT:-0}} + 1)) MASTER_PORT=23456
export MASTER_ADDR=$(hostname) WORLD_SIZE=2
newest=$(ls -d {folder}/step-* 2>/dev/null | sort -t- -k2 -n | tail -n 1)
srun --kill-on-bad-exit bash -c 'RANK=$SLURM_PROCID exec "$@"' _ {command} ${{newest:+--from $newest}}
"""


def ours(conf: tuple[str, ...]) -> dict[str, float]:
    """hpc-launch with `watch` beside the run: seconds from the death to what follows."""
    with Cluster.start(nodes=2, gpus_per_node=0, slurm_conf=conf) as cluster:
        scene = Scene(ROW, User(cluster, cluster.user_folder("ours-")))
        assert scene.submit().returncode == 0
        driver = scene.follow()
        scene.until_step(4)
        scene.happens()
        cluster.kill_node(scene.node(0))
        scene.finish(driver, 300)
        return _times(scene)


def alone(conf: tuple[str, ...]) -> dict[str, float]:
    """The same training by a script of its own and `sbatch --requeue`."""
    with Cluster.start(nodes=2, gpus_per_node=0, slurm_conf=conf) as cluster:
        scene = Scene(ROW, User(cluster, cluster.user_folder("alone-")))
        folder = scene.user.home / "saved"
        words = [sys.executable, str(TRAINING), "--folder", str(folder), "--record", str(scene.record_file)]
        script = scene.user.job(SCRIPT.format(folder=folder, command=shlex.join(words)), "alone.sh")
        cluster.run(["sbatch", script], cwd=scene.user.home, check=True)
        wait_until(lambda: _reached(scene, 1, 4), 90, lambda: f"{cluster.jobs()}")
        scene.happens()
        cluster.kill_node(scene.node(0))
        wait_until(lambda: _reached(scene, 2, 1), 400, lambda: f"{cluster.jobs()} {cluster.logs(5)}", every=0.3)
        return _times(scene)


def _reached(scene: Scene, attempt: int, step: int) -> bool:
    return any(
        line.what == "step" and line.attempt == attempt and int(line.words[0]) >= step for line in scene.record()
    )


def _times(scene: Scene) -> dict[str, float]:
    died = scene.planted or time.time()
    start = next(line.time for line in scene.record() if line.what == "start" and line.attempt == 2)
    step = next(line.time for line in scene.record() if line.what == "step" and line.attempt == 2)
    return {"start_s": round(start - died, 1), "step_s": round(step - died, 1)}


def prove(state: State) -> int:
    """Both, side by side, with Slurm's default pause; writes the page. Gives 1 unless it is under half."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(ours, SITES_WAIT), pool.submit(alone, SITES_WAIT)
        found = {"ours": first.result(), "alone": second.result()}
    found["ratio"] = {"step": round(found["ours"]["step_s"] / found["alone"]["step_s"], 2)}
    state.keep("restart", "default", found)
    print(json.dumps(found, indent=1))
    PAGE.write_text(page(found))
    return 0 if found["ratio"]["step"] < 0.5 else 1


def page(found: dict[str, dict[str, float]]) -> str:
    """The page of benchmarks/."""
    mine, other = found["ours"], found["alone"]
    return f"""\
# From a node's death to the next attempt's first step

<!-- Made by `python -m tests.prove restart`, a part of `make prove`. -->

The node of a job loses its power. Both rows are the same training with the same checkpoints, on two Slurm clusters of
the tests that run side by side on one machine, with Slurm's default wait before a requeued job (`cred_expire`, two
minutes) and `SlurmdTimeout=20`, so that Slurm notices the death after about 30 s; a site's default of 300 s is added to
both.

| | until the next training starts | until its first new step |
|---|---|---|
| hpc-launch, `watch` open | {mine["start_s"]} s | {mine["step_s"]} s |
| `sbatch --requeue` alone | {other["start_s"]} s | {other["step_s"]} s |
| ratio | {mine["start_s"] / other["start_s"]:.2f} | {mine["step_s"] / other["step_s"]:.2f} |

A new job does not wait for the old one's credential to expire, as a requeued one does. With nobody there, neither
`watch` nor a [sentinel](../docs/recovery.md#who-does-it), the next attempt waits for the user's next command.
"""
