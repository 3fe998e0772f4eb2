"""One cluster of a kind for a whole test run, however many worker processes it has.

The first process that needs a cluster starts it and leaves its descriptor in a folder that all
processes of the run share; the others attach. The process that began the run ends them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.settings import ClusterError, ClusterUnavailable
from tests.cluster.syscalls import locked, start_time


@dataclass(frozen=True)
class SharedClusters:
    """The clusters of one test run.

    Attributes:
        folder: Shared by all processes of the run, removed at its end.
        owner: The process with which every cluster ends at the latest.
    """

    folder: Path
    owner: int

    @classmethod
    def begin(cls) -> SharedClusters:
        """Make the shared folder of a run that this process owns."""
        # Those of runs that were killed; the clusters themselves end with their owners.
        for old in Path(tempfile.gettempdir()).glob("hpcl-run-*-*"):
            process, _, started = old.name.removeprefix("hpcl-run-").partition("-")
            if start_time(int(process)) != int(started):
                shutil.rmtree(old, ignore_errors=True)
        owner = os.getpid()
        folder = Path(tempfile.gettempdir()) / f"hpcl-run-{owner}-{start_time(owner)}"
        folder.mkdir(mode=0o700)
        return cls(folder, owner)

    def locked(self, name: str) -> AbstractContextManager[None]:
        """Keep the other processes of the run out."""
        return locked(self.folder / f"{name}.lock")

    def get(self, name: str, **options: Any) -> Cluster:
        """Attach to the cluster of this name; start it with `Cluster.start`'s options if need be.

        Raises:
            ClusterUnavailable: As `Cluster.start`.
            ClusterError: As `Cluster.start`; a start that failed once is not tried again.
        """
        with self.locked(f"{name}.start"):
            started, failed = self._started(name), self.folder / f"{name}.failed"
            if started.exists():
                return Cluster.attach(Path(started.read_text()))
            if failed.exists():
                raise ClusterError(failed.read_text())
            try:
                cluster = Cluster.start(owner=self.owner, **options)
            except ClusterUnavailable:
                raise
            except Exception as error:
                failed.write_text(str(error))
                raise
            started.write_text(str(cluster.descriptor))
            return cluster

    def drop(self, name: str) -> None:
        """End a cluster that a test has broken for good; the next `get` starts a new one."""
        with self.locked(f"{name}.start"):
            started = self._started(name)
            if started.exists():
                _end(Path(started.read_text()))
                started.unlink()

    def end(self) -> None:
        """End every cluster of the run and remove the shared folder."""
        for started in self.folder.glob("*.started"):
            _end(Path(started.read_text()))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _started(self, name: str) -> Path:
        return self.folder / f"{name}.started"


def _end(descriptor: Path) -> None:
    if descriptor.exists():
        Cluster(descriptor).stop()
