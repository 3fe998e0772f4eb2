"""Strategies on two nodes of a real Slurm: each computes what one process would, by the file that the job wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.marks import prove
from tests.slurm.spread_training import SPREAD, losses, losses_of_one_process
from tests.slurm.user import SMALL, User

STEPS = 8
BATCH = 8

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The losses of one process, on the machine itself."""
    return losses_of_one_process(STEPS, BATCH)


def job(name: str, how: str, launcher: str, strategy: str) -> str:
    return f"""\
name: {name}
nodes: 2
processes_per_node: 1
time: 5
launcher: {launcher}
strategy: {strategy}
script: {SPREAD}
args:
  how: {how}
  steps: {STEPS}
  global-batch: {BATCH}
  {"config: ${strategy.config}" if how == "deepspeed" else "micro-batch: ${strategy.micro_batch}"}
env: {{OMP_NUM_THREADS: 1, DS_ACCELERATOR: cpu}}
"""


def trained(user: User, text: str) -> str:
    """The log of a run to its end."""
    log = user.completed(user.job(text))
    assert user.status()["state"] == "COMPLETED"
    hosts = dict(re.findall(r"rank (\d) of 2 on host (n\d)", log))
    assert hosts["0"] != hosts["1"]
    return log


@pytest.mark.prove  # tests.slurm.test_table has both in an image
@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_pytorchs_own_strategies(user: User, alone: list[float], how: str) -> None:
    log = trained(user, job(how, how, "torchrun", f"{{name: {how}, micro_batch: 4, global_batch: {BATCH}}}"))
    assert losses(log) == pytest.approx(alone, abs=1e-3)


@pytest.mark.prove
@pytest.mark.torch("deepspeed", "accelerate")
@pytest.mark.slow
def test_an_accelerator_finds_zero_in_its_environment(user: User, alone: list[float]) -> None:
    asked = f"{{name: zero2, for: accelerate, micro_batch: 4, global_batch: {BATCH}, gradient_clipping: 0}}"
    log = trained(user, job("accelerate", "accelerate", "torchrun", asked))
    assert "DistributedType.DEEPSPEED, stage 2, precision no" in log
    assert losses(log) == pytest.approx(alone, abs=1e-3)


@pytest.mark.torch("deepspeed")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "launcher"),
    [
        prove(1, "deepspeed"),
        (2, "deepspeed"),
        prove(3, "deepspeed"),
        prove(2, "torchrun"),
        prove(3, "torchrun"),
    ],
)
def test_zero_by_the_file_that_the_job_wrote(user: User, alone: list[float], stage: int, launcher: str) -> None:
    """Two micro batches of two samples on each of two processes: the accumulation follows from the plan."""
    asked = f"{{name: zero{stage}, micro_batch: 2, global_batch: {BATCH}, gradient_clipping: 0, buckets: 1000}}"
    log = trained(user, job(f"zero{stage}", "deepspeed", launcher, asked))
    assert f"stage {stage}, batch 8 = 2 x 2 x 2" in log
    assert losses(log) == pytest.approx(alone, abs=1e-3)
    (written,) = Path(user.home / "runs").glob(f"zero{stage}-*/attempts/001/deepspeed.json")
    assert json.loads(written.read_text())["zero_optimization"]["reduce_bucket_size"] == 1000


@pytest.mark.torch("deepspeed")
@pytest.mark.slow
def test_a_killed_deepspeed_launcher_never_counts_as_success(user: User) -> None:
    """`deepspeed` itself ends with 0 when its child, the launcher of the node, is killed by a signal."""
    kill = "pkill -KILL -u alice -f deepspeed.launcher.launch"
    answer = user.launch(
        "submit",
        str(REPOSITORY / "examples" / "tiny-gpt" / "job-deepspeed.yaml"),
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
