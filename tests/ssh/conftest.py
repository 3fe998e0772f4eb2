"""A user of hosts without a scheduler: the nodes of the test cluster, reached by real ssh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.settings import ClusterUnavailable
from tests.cluster.ssh import connect_nodes
from tests.cluster.syscalls import locked
from tests.ssh.ssh_user import SshUser


@pytest.fixture
def user(cluster: Cluster, user_dir: Path) -> SshUser:
    try:
        connect_nodes(cluster)
    except ClusterUnavailable as missing:
        pytest.skip(str(missing))
    user = SshUser(cluster, user_dir)
    user.profile("hosts: {n1: 2, n2: 2, n3: 1}")
    return user


@pytest.fixture
def leases(cluster: Cluster) -> Iterator[None]:
    """Let this test lease hosts: one test at a time."""
    with locked(cluster.scratch / "leases.lock"):
        yield
