"""Runs on a scheduler of the tests, and the notes on nodes in a folder of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.fake import FakeScheduler


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return FakeScheduler(tmp_path / "scheduler")
