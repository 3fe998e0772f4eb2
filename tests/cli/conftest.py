"""The home of a user, for the verbs that read and change runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_launch.schedulers.local import local_jobs
from hpc_launch.schedulers.local.local_scheduler import LocalScheduler
from tests.view.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """For this process as well. The environment has nothing of whoever runs the tests but PATH."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "HPC_LAUNCH_HOME": str(tmp_path / "runs"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm",
    }
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    try:
        yield Home(tmp_path, environment)
    finally:
        for entry in local_jobs.entries():
            LocalScheduler().cancel(entry.job_id)
