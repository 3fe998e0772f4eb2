"""The example, trained for real on a Slurm of four nodes."""

from __future__ import annotations

import re

import pytest

from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.slurm.user import SMALL, User

EXAMPLE = REPOSITORY / "examples" / "tiny-gpt"

pytestmark = pytest.mark.torch


@pytest.mark.prove
@pytest.mark.slow
def test_torchrun_trains_over_four_nodes_of_two_processes(user: User) -> None:
    done = user.launch("submit", str(EXAMPLE / "job.yaml"), "--wait", "--set", "nodes=4", "--set", "args.steps=20")
    assert done.returncode == 0, done.stdout + done.stderr
    status = user.status()
    assert (status["state"], status["state_source"]) == ("COMPLETED", "end_record")
    assert status["progress"]["step"] == status["progress"]["total"] == 20
    assert status["progress"]["loss"] < 4
    assert status["attempts"][0]["nodes"] == ["n1", "n2", "n3", "n4"]
    log = user.launch("logs", "@last").stdout
    ranks = dict(re.findall(r"rank (\d) of 8 on host (n\d)", log))
    assert ranks == {"0": "n1", "1": "n1", "2": "n2", "3": "n2", "4": "n3", "5": "n3", "6": "n4", "7": "n4"}
    only = user.launch("logs", "@last", "--rank", "5").stdout
    assert "rank 5 of 8" in only
    assert "rank 4 of 8" not in only


@pytest.mark.prove
@pytest.mark.torch("deepspeed")
@pytest.mark.slow
def test_deepspeed_trains_over_two_nodes_without_ssh(user: User) -> None:
    done = user.launch("submit", str(EXAMPLE / "job-deepspeed.yaml"), "--wait", "--set", "args.steps=10")
    assert done.returncode == 0, done.stdout + done.stderr
    status = user.status()
    assert status["state"] == "COMPLETED"
    assert status["progress"]["step"] == 10
    found = re.findall(r"rank (\d) of 4 on host (n\d)", user.launch("logs", "@last").stdout)
    assert set(found) == user.places(2)


@pytest.mark.prove
@pytest.mark.slow
def test_a_failing_rank_ends_the_run_at_once(user: User) -> None:
    failing = ["--set", "args.fail-at-step=3", "--set", "args.fail-rank=3", "--set", "args.steps=1000"]
    done = user.launch("submit", str(EXAMPLE / "job.yaml"), "--wait", *failing)
    assert done.returncode == 1, done.stdout + done.stderr
    status = user.status()
    assert status["state"] == "FAILED"
    assert status["attempts"][0]["exit_code"] != 0
    assert "RuntimeError" in user.launch("logs", "@last", "--rank", "3").stdout


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
