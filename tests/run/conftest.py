"""Places for the tests of runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.run.fake import FakeScheduler

# How long an example takes says something of the machine's load only.
settings.register_profile("run", deadline=None)
settings.load_profile("run")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def scheduler(tmp_path: Path) -> FakeScheduler:
    return FakeScheduler(tmp_path / "scheduler")
