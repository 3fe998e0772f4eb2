"""An elastic run outlives a node that is not the first: it goes on from its checkpoint with those that are left."""

from __future__ import annotations

import time

import pytest

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
