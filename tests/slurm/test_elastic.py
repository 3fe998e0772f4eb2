"""An elastic run outlives a node that is not the first: it goes on from its checkpoint with those that are left."""

from __future__ import annotations

import time

import pytest

from tests.busy import patience
from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.slurm.user import SMALL, User

EXAMPLE = REPOSITORY / "examples" / "tiny-gpt" / "job.yaml"

pytestmark = pytest.mark.torch


@pytest.mark.prove
@pytest.mark.slow
def test_torchrun_goes_on_from_three_nodes_to_two(user_in_trouble: User) -> None:
    user = user_in_trouble
    changes = {
        "nodes": "2..3",
        "processes_per_node": 1,
        "args.steps": 30,
        "args.sleep-per-step": 0.4,
        "args.checkpoint-every": 5,
        # A node that vanishes closes no connection: its peers give up after this time.
        "args.collective-timeout": 10,
        # torchrun continues by itself where no other attempt may follow in the job.
        "retry.in_allocation": "off",
    }
    run = user.launch("submit", str(EXAMPLE), *SMALL, *(f"--set={key}={value}" for key, value in changes.items()))
    assert run.returncode == 0, run.stderr
    wait_until(lambda: (user.status()["progress"]["step"] or 0) >= 10, every=1)
    assert user.status()["attempts"][0]["nodes"] == ["n1", "n2", "n3"]
    user.cluster.kill_node("n3")
    status = user.until("@last", "COMPLETED", "FAILED")
    assert status["state"] == "COMPLETED", status
    assert status["progress"]["step"] == 30
    log = user.launch("logs", "@last").stdout
    assert "world_size was 3 and is 2" in log
    assert "lost 1 of 3 nodes" in log
    # The accounting tells of the failed step some seconds later: the run ended well all the same.
    time.sleep(12)
    assert user.status()["state"] == "COMPLETED"


def started(user: User, seconds: float = 90) -> None:
    """Start the example on three nodes and wait for its step 10."""
    changes = {
        "nodes": "2..3",
        "processes_per_node": 1,
        "exclude": "[n4]",
        "args.steps": 40,
        "args.sleep-per-step": 0.3,
    }
    options = [f"--set={key}={value}" for key, value in {**changes, "args.checkpoint-every": 5}.items()]
    run = user.launch("submit", str(EXAMPLE), *SMALL, *options)
    assert run.returncode == 0, run.stderr
    end = time.monotonic() + seconds
    while (user.status()["progress"]["step"] or 0) < 10:
        assert time.monotonic() < end, user.launch("logs", "@last").stdout
        time.sleep(1)


@pytest.mark.cluster
@pytest.mark.prove
def test_a_node_that_loses_power_while_slurm_does_not_notice() -> None:
    with Cluster.start(nodes=4, slurm_conf=["SlurmdTimeout=300"]) as cluster:
        user = User(cluster, cluster.user_folder("elastic-"))
        started(user)
        cluster.kill_node("n2")
        lost = time.time()
        status = user.until("@last", "COMPLETED", "FAILED")

        folder = user.home / "runs" / status["run"]
        batch = (folder / "attempts/001/batch.log").read_text()
        assert status["state"] == "COMPLETED", batch
        assert "lost 1 of 3 nodes" in batch
        assert [(one["nodes"], one["class"], one["verdict"], one["job_id"]) for one in status["attempts"]] == [
            (["n1", "n2", "n3"], "node_failure", "RETRY_ELSEWHERE", status["attempts"][0]["job_id"]),
            (["n1", "n3"], "success", "NONE", status["attempts"][0]["job_id"]),
        ]
        log = folder / "attempts/002/logs/node-0.log"
        assert "world_size was 3 and is 2" in log.read_text()
        began = status["attempts"][1]["started"]
        assert began - lost <= patience(60), "SlurmdTimeout is 300 s"
