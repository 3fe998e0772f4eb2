"""The home of a user, for the verbs that read and change runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_launch.schedulers.local import local_jobs
from hpc_launch.schedulers.local.local_scheduler import LocalScheduler
from tests.forked import inherited
from tests.view.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """For this process as well. The environment has nothing of whoever runs the tests but PATH and Python's."""
    with _home(tmp_path) as home:
        yield home


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """The home of all tests of a file that only read."""
    with _home(tmp_path_factory.mktemp("home")) as home:
        yield home


@contextmanager
def _home(folder: Path) -> Iterator[Home]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HPC_LAUNCH_HOME": str(folder / "runs"),
        "TERM": "xterm",
        **inherited(),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.delenv("XDG_STATE_HOME", raising=False)
        try:
            yield Home(folder, environment)
        finally:
            for entry in local_jobs.entries():
                LocalScheduler().cancel(entry.job_id)
