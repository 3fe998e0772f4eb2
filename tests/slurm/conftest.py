"""Users on the three clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.slurm.user import User


@pytest.fixture
def user(cluster: Cluster, user_dir: Path) -> User:
    return User(cluster, user_dir)


@pytest.fixture
def user_without_accounting(cluster_bare: Cluster, user_dir: Path) -> User:
    return User(cluster_bare, user_dir)


@pytest.fixture
def user_in_trouble(disturbed_cluster: Cluster, user_dir: Path) -> User:
    return User(disturbed_cluster, user_dir)
