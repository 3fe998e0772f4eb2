"""The tutorial about a new cluster, followed on one that nobody has written a profile of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.page_runs import follow


@dataclass(frozen=True)
class ClusterReader:
    """A reader on the login node, with a home of their own."""

    cluster: Cluster
    home: Path

    @property
    def names(self) -> Mapping[str, str]:
        """The home and the cluster are those of the test."""
        return {"/home/alice": str(self.home), "mycluster": "testcluster"}

    def write(self, name: str, text: str) -> None:
        """Write a file of the page."""
        self.cluster.write(self.home / name, text)

    def run(self, words: str) -> tuple[int, str]:
        """Run a command on the login node."""
        done = self.cluster.run(["bash", "-c", words], cwd=self.home, env={"HOME": str(self.home)}, timeout=300)
        return done.returncode, done.stdout + done.stderr


@pytest.mark.cluster
@pytest.mark.prove  # test_learn.py does the same with the other commands
def test_from_nothing_to_a_job(cluster: Cluster, user_dir: Path) -> None:
    assert len(follow("tutorials/your-cluster.md", ClusterReader(cluster, user_dir))) > 5
