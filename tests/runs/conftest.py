"""Places for the tests of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.fake import FakeScheduler


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def scheduler(tmp_path: Path) -> FakeScheduler:
    return FakeScheduler(tmp_path / "scheduler")
