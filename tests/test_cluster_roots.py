"""The same cluster in other Debian releases: newer versions of Slurm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.slurm.user import User

SLURM = {"trixie": ((24, 11), (24, 12)), "sid": ((26, 5), (99, 0))}
"""From which version of Slurm to below which; sid moves on."""


@pytest.fixture
def user(cluster_newer: Cluster, user_dir: Path) -> User:
    return User(cluster_newer, user_dir)


def test_the_version_of_slurm(cluster_newer: Cluster) -> None:
    low, below = SLURM[cluster_newer.settings.system or ""]
    words = cluster_newer.run(["sinfo", "--version"], check=True).stdout
    version = re.search(r"(\d+)\.(\d+)", words)
    assert version is not None, words
    assert low <= (int(version[1]), int(version[2])) < below


def test_a_job_that_ends_well(user: User) -> None:
    command = "sh -c 'echo rank $RANK of $WORLD_SIZE'"
    text = f"name: done\nlauncher: srun\nnodes: 2\nprocesses_per_node: 2\ncommand: {command}\n"
    log = user.completed(user.job(text))
    assert user.status()["state"] == "COMPLETED"
    for rank in range(4):
        assert f"rank {rank} of 4" in log
