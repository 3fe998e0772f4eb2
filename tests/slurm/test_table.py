"""Strategies by each launcher, bare and inside Apptainer: they compute what one process would, and end as they should.

What `tests.slurm.test_launchers` and `test_apptainer_images` leave open of docs/evidence/launch-table.md. The
strategies on their own come first. Then one job trains in several ways in turn; it is warned, and its last rank ends
with 7.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import Cluster
from tests.cluster.faults import wait_until
from tests.cluster.requirements import REPOSITORY
from tests.cluster.settings import ClusterUnavailable
from tests.cluster.ssh import connect_nodes
from tests.marks import prove
from tests.slurm.user import SMALL, User

SPREAD = REPOSITORY / "tests" / "slurm" / "programs" / "spread.py"
STEPS = 8
BATCH = 8

LAUNCHERS: dict[str, dict[str, str]] = {
    "static": {"name": "torchrun"},
    "torchrun": {"name": "torchrun"},
    "c10d": {"name": "torchrun", "rendezvous": "c10d"},
    "srun": {"name": "srun"},
    "deepspeed": {"name": "deepspeed", "multinode": "no_ssh"},
    "pdsh": {"name": "deepspeed", "multinode": "pdsh"},
}

pytestmark = pytest.mark.torch("deepspeed")


def losses(log: str) -> list[float]:
    """The loss of each step."""
    return [float(loss) for loss in re.findall(r"step \d+/\d+ loss ([\d.]+)", log)]


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """The losses of one process without a launcher, on the machine itself."""
    command = [sys.executable, str(SPREAD), "--how=alone", f"--steps={STEPS}", f"--global-batch={BATCH}"]
    return losses(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture
def boxed(cluster_sid: Cluster, sif: Path, user_dir: Path) -> tuple[User, dict[str, Any]]:
    """A user, and `container:` of a job in the small image, with the tests' own Python bound in."""
    return User(cluster_sid, user_dir), {"image": str(sif), "binds": cluster_sid.python_folders}


def zero(stage: int) -> dict[str, object]:
    return {"name": f"zero{stage}", "micro_batch": 2, "global_batch": BATCH, "gradient_clipping": 0}


def job(user: User, how: str, launcher: str, stage: int = 1, **keys: object) -> str:
    """A job of two nodes with one process on each; its file of ZeRO is for two micro batches of two samples."""
    name = f"{launcher}-zero{stage}"
    batch = {"config": "${strategy.config}"} if "deepspeed" in how else {"micro-batch": "${strategy.micro_batch}"}
    args = {"how": how, "steps": STEPS, "global-batch": BATCH, **batch}
    wanted: dict[str, object] = {
        "name": name,
        "nodes": 2,
        "processes_per_node": 1,
        "time": 5,
        "launcher": LAUNCHERS[launcher],
        "strategy": zero(stage),
        "script": str(SPREAD),
        "args": {**args, **({"last-ends-with": 7} if keys.pop("fails", False) else {})},
        "env": {"OMP_NUM_THREADS": 1, "DS_ACCELERATOR": "cpu"},
        "retry": {"max_attempts": 1},
    }
    return user.job(yaml.safe_dump({**wanted, **keys}), f"{name}.yaml")


def computes_as_one_process(log: str, alone: list[float], ways: int = 1) -> None:
    assert losses(log) == pytest.approx(alone * ways, abs=1e-3), log
    hosts = dict(re.findall(r"rank (\d) of 2 on host (n\d)", log))
    assert set(hosts) == {"0", "1"}
    assert hosts["0"] != hosts["1"]


@pytest.mark.prove  # both are trained in an image, too
@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_pytorchs_own_strategies(user: User, alone: list[float], how: str) -> None:
    asked = {"name": how, "micro_batch": 4, "global_batch": BATCH}
    log = user.completed(job(user, how, "static", name=how, strategy=asked))
    computes_as_one_process(log, alone)


@pytest.mark.prove
@pytest.mark.torch("deepspeed", "accelerate")
@pytest.mark.slow
def test_an_accelerator_finds_zero_in_its_environment(user: User, alone: list[float]) -> None:
    asked = {"name": "zero2", "for": "accelerate", "micro_batch": 4, "global_batch": BATCH, "gradient_clipping": 0}
    log = user.completed(job(user, "accelerate", "static", name="accelerate", strategy=asked))
    assert "DistributedType.DEEPSPEED, stage 2, precision no" in log
    computes_as_one_process(log, alone)


@pytest.mark.torch("deepspeed")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "launcher"),
    [
        prove(1, "deepspeed"),
        prove(2, "deepspeed"),
        prove(3, "deepspeed"),
        prove(2, "torchrun"),
        prove(3, "torchrun"),
    ],
)
def test_zero_by_the_file_that_the_job_wrote(user: User, alone: list[float], stage: int, launcher: str) -> None:
    """Two micro batches of two samples on each of two processes: the accumulation follows from the plan."""
    asked = {**zero(stage), "buckets": 1000}
    log = user.completed(job(user, "deepspeed", launcher, name=f"zero{stage}", strategy=asked))
    assert f"stage {stage}, batch 8 = 2 x 2 x 2" in log
    computes_as_one_process(log, alone)
    (written,) = Path(user.home / "runs").glob(f"zero{stage}-*/attempts/001/deepspeed.json")
    assert json.loads(written.read_text())["zero_optimization"]["reduce_bucket_size"] == 1000


@pytest.mark.prove  # the grid kills launchers, too
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


def begun(user: User, run: dict[str, str]) -> None:
    """Wait until both ranks wait for a signal."""
    folder = Path(run["folder"]) / "attempts" / "001"

    def waits() -> bool:
        assert not (folder / "end.json").exists(), user.launch("logs", run["run"]).stdout
        return len(list(folder.glob("waits-*"))) == 2

    wait_until(waits, explain=lambda: user.launch("logs", run["run"]).stdout, every=0.3)


def ends_with_seven_when_it_is_warned(user: User, run: dict[str, str], launcher: str) -> str:
    """The log, once the warning, the exit code and the log of each rank were seen to arrive."""
    begun(user, run)
    user.cluster.run(["scancel", "--batch", "--signal=USR1", run["job_id"]], check=True)
    status = user.until(run["run"], "FAILED", "COMPLETED")
    # torchrun has one code for every failure of a process, 1 (torch/distributed/run.py).
    assert status["attempts"][0]["exit_code"] == (1 if LAUNCHERS[launcher]["name"] == "torchrun" else 7), status
    for rank in range(2):
        only = user.launch("logs", run["run"], "--rank", str(rank)).stdout
        assert re.findall(r"rank (\d) was warned", only) == [str(rank)]
    return user.launch("logs", run["run"]).stdout


def in_turn(user: User, alone: list[float], launcher: str, stage: int, **keys: object) -> None:
    run = user.submit(job(user, "ddp,fsdp,deepspeed", launcher, stage, fails=True, **keys))
    log = ends_with_seven_when_it_is_warned(user, run, launcher)
    assert f"stage {stage}, batch 8 = 2 x 2 x 2" in log
    computes_as_one_process(log, alone, 3)


def each_stage(user: User, alone: list[float], launcher: str, *stages: int, **keys: object) -> None:
    """Stages of ZeRO side by side; the job of the last one is warned, and ends with 7."""
    last = stages[-1]
    runs = {
        stage: user.submit(job(user, "deepspeed", launcher, stage, fails=stage == last, **keys)) for stage in stages
    }
    for stage, run in runs.items():
        if stage == last:
            log = ends_with_seven_when_it_is_warned(user, run, launcher)
        else:
            status = user.until(run["run"], "COMPLETED", "FAILED")
            log = user.launch("logs", run["run"]).stdout
            assert status["state"] == "COMPLETED", log
        assert f"stage {stage}, batch 8 = 2 x 2 x 2" in log
        computes_as_one_process(log, alone)


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "stage"), [prove("c10d", 1), ("srun", 3)])
def test_ddp_fsdp_and_zero_in_turn(
    cluster: Cluster, user_dir: Path, alone: list[float], launcher: str, stage: int
) -> None:
    in_turn(User(cluster, user_dir), alone, launcher, stage)


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "stage"),
    [("static", 3), ("c10d", 2), ("srun", 1)],
)
def test_ddp_fsdp_and_zero_in_an_image(
    boxed: tuple[User, dict[str, Any]], alone: list[float], launcher: str, stage: int
) -> None:
    user, container = boxed
    in_turn(user, alone, launcher, stage, container=container)


@pytest.mark.prove
@pytest.mark.slow
def test_zero_by_deepspeed_in_an_image(boxed: tuple[User, dict[str, Any]], alone: list[float]) -> None:
    user, container = boxed
    each_stage(user, alone, "deepspeed", 1, 3, 2, container=container)


@pytest.mark.prove
@pytest.mark.slow
def test_zero_by_deepspeed_over_ssh(cluster: Cluster, user_dir: Path, alone: list[float]) -> None:
    try:
        connect_nodes(cluster)
    except ClusterUnavailable as missing:
        pytest.skip(str(missing))
    each_stage(User(cluster, user_dir), alone, "pdsh", 2, 3)


WAITS = """\
import os, signal, sys, time
folder, rank, told = os.environ["HPC_LAUNCH_ATTEMPT_DIR"], os.environ["RANK"], os.environ["HPC_LAUNCH_STOP_FILE"]
def save(*_):
    time.sleep(2)
    print("rank", rank, "has saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(f"{folder}/waits-{rank}", "w").close()
for _ in range(3000):
    time.sleep(0.1)
    if os.path.exists(told):
        print("rank", rank, "was warned", flush=True)
        sys.exit(7) if rank == "1" else time.sleep(60)
"""


def waiting(user: User, launcher: str) -> dict[str, str]:
    """A run of a program that waits for its end, and saves when it is told by a signal."""
    file = job(user, "", launcher, script=user.job(WAITS, "waits.py"), strategy="ddp", args={})
    run = user.submit(file)
    begun(user, run)
    return run


@pytest.mark.slow
def test_a_process_of_srun_that_is_cancelled_is_left_the_time_to_save(cluster: Cluster, user_dir: Path) -> None:
    """Slurm kills what is left of a task as soon as the process that it started is gone, however long KillWait is."""
    user = User(cluster, user_dir)
    run = waiting(user, "srun")
    cluster.run(["scancel", run["job_id"]], check=True)
    user.until(run["run"], "CANCELLED", "FAILED")
    log = user.launch("logs", run["run"]).stdout
    assert sorted(re.findall(r"rank (\d) has saved", log)) == ["0", "1"], log
