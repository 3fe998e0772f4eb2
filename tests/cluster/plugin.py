"""Pytest fixtures for tests on a real Slurm cluster; register it with ``pytest_plugins``.

* ``cluster``: shared by the whole run, with accounting. A test leaves it as it was.
* ``cluster_bare``: the same without accounting.
* ``cluster_trixie``, ``cluster_sid``: as ``cluster``, in another Debian with a newer Slurm; see
  `roots`. ``cluster_newer`` is each of the two in turn.
* ``sif``: a small image for the Apptainer of ``cluster_sid``; see `image`.
* ``disturbed_cluster``: one test at a time, which may break anything; it is repaired afterwards.
* ``user_dir``: a fresh folder in the ordinary user's home on the cluster that the test uses.

Where no cluster can run the tests are skipped;
``HPC_LAUNCH_TEST_REQUIRE_CLUSTER=1`` makes them fail instead, for a CI that must not skip them.
Every test that uses one has the mark ``cluster``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.cluster import requirements
from tests.cluster.cluster import Cluster
from tests.cluster.image import build_sif
from tests.cluster.roots import SYSTEMS
from tests.cluster.settings import ClusterUnavailable
from tests.cluster.shared import SharedClusters
from tests.marks import prove

REQUIRED = "HPC_LAUNCH_TEST_REQUIRE_CLUSTER"
FIXTURES = ("disturbed_cluster", "cluster", "cluster_bare", "cluster_trixie", "cluster_sid", "cluster_newer")
TIMEOUT_S = 1200
"""For a test on a busy machine that waits several times, or that is the first one and has another Debian made."""

_shared = pytest.StashKey[SharedClusters]()


def pytest_configure(config: pytest.Config) -> None:
    """Agree with all processes of the run on one folder, and on who owns the clusters."""
    told: dict[str, Any] | None = getattr(config, "workerinput", None)
    if told is None:
        config.stash[_shared] = SharedClusters.begin()
    else:
        folder = Path(told["cluster_folder"])
        config.stash[_shared] = SharedClusters(folder, told["cluster_owner"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist, before it starts, what has been agreed."""
    shared = node.config.stash[_shared]
    node.workerinput["cluster_folder"] = str(shared.folder)
    node.workerinput["cluster_owner"] = shared.owner


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the clusters, in the one process that owns them."""
    shared = config.stash.get(_shared, None)
    if shared is not None and shared.owner == os.getpid():
        shared.end()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a cluster to a test without the mark `cluster`, which `make check` would run."""
    requirements.allowed = item.get_closest_marker("cluster") is not None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a cluster, keep those that break one in one worker, and begin with the longest files."""
    for item in items:
        used = getattr(item, "fixturenames", ())
        if any(name in used for name in FIXTURES):
            item.add_marker("cluster")
        if item.get_closest_marker("cluster") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if "disturbed_cluster" in used:
            # Only with --dist loadgroup; without it a lock sees to it, and workers wait.
            item.add_marker(pytest.mark.xdist_group("disturbed_cluster"))
    # Those of a Slurm and of real trainings take minutes: begun last, they would leave the other workers idle.
    long = Counter(item.path for item in items if any(map(item.get_closest_marker, ("cluster", "slow"))))
    items.sort(key=lambda item: -long[item.path])


def _get(config: pytest.Config, name: str, **options: Any) -> Cluster:
    """The run's cluster of this name; where there can be none, the test is skipped or fails."""
    try:
        return config.stash[_shared].get(name, **options)
    except ClusterUnavailable as missing:
        _give_up(missing)


def _give_up(missing: ClusterUnavailable) -> NoReturn:
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{missing}, and {REQUIRED}=1 asks for it", pytrace=False)
    pytest.skip(f"no test cluster: {missing}")


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Cluster:
    """A cluster with accounting that all tests of the run share."""
    return _get(pytestconfig, "cluster")


@pytest.fixture(scope="session")
def cluster_bare(pytestconfig: pytest.Config) -> Cluster:
    """A cluster without accounting that all tests of the run share."""
    return _get(pytestconfig, "bare", accounting=False)


@pytest.fixture(scope="session")
def cluster_trixie(pytestconfig: pytest.Config) -> Cluster:
    """A cluster with Slurm 24.11 that all tests of the run share."""
    return _get(pytestconfig, "trixie", system="trixie")


@pytest.fixture(scope="session")
def cluster_sid(pytestconfig: pytest.Config) -> Cluster:
    """A cluster with Slurm 26.05 or newer, and Apptainer, that all tests of the run share."""
    return _get(pytestconfig, "sid", system="sid")


@pytest.fixture(scope="session", params=["sid", *(prove(name) for name in sorted(SYSTEMS) if name != "sid")])
def cluster_newer(request: pytest.FixtureRequest) -> Cluster:
    """Each cluster with a newer Slurm in turn."""
    cluster: Cluster = request.getfixturevalue(f"cluster_{request.param}")
    return cluster


@pytest.fixture(scope="session")
def sif(pytestconfig: pytest.Config, cluster_sid: Cluster) -> Path:
    """A small image, made once for the run, in which this Python runs when it is bound into it."""
    path = cluster_sid.scratch / "small.sif"
    with pytestconfig.stash[_shared].locked("sif"):
        if not path.exists():
            try:
                build_sif(cluster_sid, path)
            except ClusterUnavailable as missing:
                _give_up(missing)
    return path


@pytest.fixture
def disturbed_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster with accounting for one test alone; it is repaired after each."""
    shared = pytestconfig.stash[_shared]
    with shared.locked("disturbed"):
        cluster = _get(pytestconfig, "disturbed")
        yield cluster
        try:
            cluster.restore()
        except Exception:
            # The fault of this one test must not become that of the next.
            shared.drop("disturbed")
            raise


@pytest.fixture
def user_dir(request: pytest.FixtureRequest) -> Path:
    """A fresh folder in the ordinary user's home, on shared storage of the test's cluster."""
    used = next((name for name in FIXTURES if name in request.fixturenames), "cluster")
    cluster: Cluster = request.getfixturevalue(used)
    return cluster.user_folder(re.sub(r"\W+", "-", request.node.name)[:40] + "-")
