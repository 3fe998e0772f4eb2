"""A node that was cut off is still alive: its ranks are dead before those of the next attempt write."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.faults import wait_until
from tests.slurm.test_restart import job
from tests.slurm.user import User

WRITES = """\
import os, time
attempt, rank, run = os.environ["HPC_LAUNCH_ATTEMPT"], os.environ["RANK"], os.environ["HPC_LAUNCH_RUN_DIR"]
print("step 1/2", flush=True)
while attempt == "1" or not os.path.exists(f"{run}/enough"):
    with open(f"{run}/written", "a") as file:
        print(attempt, rank, time.time(), os.uname().nodename, file=file, flush=True)
    time.sleep(0.1)
print("step 2/2", flush=True)
"""
"""Each rank writes for itself. The disk of the tests' cluster is there without a network."""


def written(run: dict[str, Any], attempt: str) -> list[float]:
    """When the ranks of an attempt wrote."""
    path = Path(run["folder"], "written")
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [float(row[2]) for row in rows if row[0] == attempt]


@pytest.mark.prove  # tests.agent.test_heartbeat has the fence of one node
@pytest.mark.slow
@pytest.mark.parametrize("spares", [1, 0])
def test_a_node_that_was_cut_off_does_not_write_beside_the_next_attempt(user_in_trouble: User, spares: int) -> None:
    user = user_in_trouble
    run = user.submit(job(user, WRITES, nodes=2, processes_per_node=1, spares=spares, exclude=["n4"], launcher="srun"))
    wait_until(lambda: len(written(run, "1")) > 20)
    watch = None if spares else user.popen("watch", run["run"])
    try:
        time.sleep(5)
        user.cluster.cut("n2")
        wait_until(
            lambda: len(written(run, "2")) > 50, explain=lambda: f"{user.status(run['run'])} {user.cluster.jobs()}"
        )
        user.cluster.mend("n2")
        time.sleep(15)
        user.cluster.run(["touch", f"{run['folder']}/enough"], check=True)
        status = user.until(run["run"], "COMPLETED", "FAILED")
    finally:
        if watch is not None:
            user.cluster.kill_tree(watch)
            watch.communicate()

    attempts = status["attempts"]
    assert [one["state"] for one in attempts][1:] == ["COMPLETED"], status
    assert (attempts[0]["job_id"] == attempts[1]["job_id"]) == bool(spares)
    assert max(written(run, "1")) < min(written(run, "2"))
