"""DeepSpeed's own launcher, killed while the example trains on a real Slurm."""

from __future__ import annotations

import pytest

from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.slurm.user import SMALL, User

EXAMPLE = REPOSITORY / "examples" / "tiny-gpt"

pytestmark = pytest.mark.torch


@pytest.mark.torch("deepspeed")
@pytest.mark.slow
def test_a_killed_deepspeed_launcher_never_counts_as_success(user: User) -> None:
    """`deepspeed` itself ends with 0 when its child, the launcher of the node, is killed by a signal."""
    kill = "pkill -KILL -u alice -f deepspeed.launcher.launch"
    answer = user.launch(
        "submit",
        str(EXAMPLE / "job-deepspeed.yaml"),
        "--set=args.steps=100000",
        "--set=retry.max_attempts=1",
        "--set=args.sleep-per-step=0.2",
        "--set=processes_per_node=1",
        *SMALL,
    )
    assert answer.returncode == 0, answer.stderr
    try:
        # A running step: before it, the launcher of the other node may not have been started yet.
        wait_until(lambda: bool(user.status()["progress"]["step"]), explain=lambda: f"{user.status()}", every=2)
        killed = user.cluster.node_exec(user.status()["attempts"][0]["nodes"][1], ["sh", "-c", kill])
        assert killed.returncode == 0
        status = user.until("@last", "FAILED", "COMPLETED")
    finally:
        user.launch("cancel", "@last")
    assert status["state"] == "FAILED"
