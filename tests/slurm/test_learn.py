"""From nothing to a run: a profile is learned on the login node, and a job that names no site, queue or GPUs runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.marks import prove
from tests.slurm.user import User

JOB = "name: unchanged\nnodes: 2\nprocesses_per_node: 1\nscript: train.py\nretry: 1\n"
TRAIN = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print("sum", one.item())
dist.barrier()
dist.destroy_process_group()
"""
WITHOUT_TORCH = """\
import os
print("sum", float(os.environ["WORLD_SIZE"]))
"""


class Stranger(User):
    """A user who comes to a cluster that nobody has written a profile of."""

    @property
    def env(self) -> dict[str, str]:
        return {key: value for key, value in super().env.items() if not key.startswith("HPC_LAUNCH_SITE")}


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("kind", "release", "train"),
    [
        ("cluster", "22.05", WITHOUT_TORCH),  # the job on its nodes has PyTorch meet
        prove("cluster_trixie", "24.11", TRAIN),
        prove("cluster_sid", "26.05", TRAIN),
    ],
    ids=["cluster-22.05", "cluster_trixie-24.11", "cluster_sid-26.05"],
)
def test_from_nothing_to_a_run(request: pytest.FixtureRequest, kind: str, release: str, train: str) -> None:
    """Learn the site with a job on its nodes, run the job, and look for drift."""
    cluster: Cluster = request.getfixturevalue(kind)
    stranger = Stranger(cluster, cluster.user_folder("stranger-"))
    stranger.job(train, "train.py")
    job = stranger.job(JOB if train == TRAIN else f"{JOB}launcher: srun\n")
    done = stranger.launch("render", job)
    assert done.returncode == 3
    assert "sites learn" in done.stderr

    done = stranger.launch("sites", "learn", "--smoke", "--partition", "gpu", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    learned = json.loads(done.stdout)
    assert learned["slurm"].startswith(release)
    assert learned["status"] == "verified"
    assert learned["accounts"], "each release knows the columns that sacctmgr is asked for"
    assert learned["jobs"][0]["fault"] is None
    profile = Path(learned["file"]).read_text(encoding="utf-8")
    assert "interface: [eth0]" in profile
    assert "accepted by sbatch --test-only" in profile
    assert "PyTorch 2" in profile

    done = stranger.launch("sites", "detect", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["site"] == learned["name"] == "testcluster"

    done = stranger.launch("submit", job, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "site testcluster: Slurm cluster name testcluster" in done.stderr
    status = stranger.status()
    assert (status["state"], status["site"]) == ("COMPLETED", "testcluster")
    assert "sum 2.0" in stranger.launch("logs", "@last").stdout
    assert stranger.launch("sites", "check", "--live", "testcluster").returncode == 0


def test_drift_is_named_row_by_row(disturbed_cluster: Cluster, user_dir: Path) -> None:
    stranger = Stranger(disturbed_cluster, user_dir)
    assert stranger.launch("sites", "learn", "here").returncode == 0
    assert stranger.launch("sites", "check", "--live", "here").returncode == 0

    def update(*words: str) -> None:
        disturbed_cluster.run(["scontrol", "update", "PartitionName=gpu", *words], user="root", check=True)

    update("MaxTime=00:30:00", "MaxNodes=3")
    try:
        done = stranger.launch("sites", "check", "--live", "here", "--json")
    finally:
        update("MaxTime=01:00:00", "MaxNodes=UNLIMITED")
    assert done.returncode == 3
    rows = [(row["key"], row["profile"], row["cluster"]) for row in json.loads(done.stdout)]
    assert rows == [("queues.gpu.limits", "01:00:00", "00:30:00"), ("queues.gpu.limits", "4 nodes", "3 nodes")]
    assert stranger.launch("sites", "check", "--live", "here").returncode == 0


@pytest.mark.parametrize("refused", [["--partition", "nowhere", "--smoke"], ["--partition", "gpu"]])
def test_a_wrong_partition_submits_nothing(cluster: Cluster, user_dir: Path, refused: list[str]) -> None:
    stranger = Stranger(cluster, user_dir)
    assert stranger.launch("sites", "learn", *refused).returncode == 2
    assert json.loads(stranger.launch("list", "--json").stdout) == []


def test_a_profile_that_is_there_is_not_written_over(cluster: Cluster, user_dir: Path) -> None:
    stranger = Stranger(cluster, user_dir)
    path = stranger.job("name: mine\n", "mine.yaml")
    done = stranger.launch("sites", "learn", "-o", path)
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert Path(path).read_text() == "name: mine\n"


def test_without_accounting_a_profile_is_learned_too(cluster_bare: Cluster, user_dir: Path) -> None:
    done = Stranger(cluster_bare, user_dir).launch("sites", "learn", "-o", "-")
    assert done.returncode == 0, done.stderr
    assert "default_queue: gpu" in done.stdout
